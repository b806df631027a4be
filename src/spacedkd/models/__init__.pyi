# Networks with the heads that methods need
from .classifier import Classifier as Classifier
from .classifier import Prediction as Prediction
from .early_exits import EarlyExits as EarlyExits
