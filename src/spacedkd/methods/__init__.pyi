# ruff: noqa: I001  grouped by what they are for
# By name
from .registry import METHODS as METHODS
from .registry import build_method as build_method
from .registry import describe as describe

# For a method of your own
from .base import Ingredients as Ingredients
from .base import Method as Method
from .base import Models as Models
from .base import Progress as Progress

# The methods
from .ban import BAN as BAN
from .ctkd import CTKD as CTKD
from .dkd import DKD as DKD
from .dlb import DLB as DLB
from .dml import DML as DML
from .eskd import ESKD as ESKD
from .fitnet import FitNet as FitNet
from .hinton import Hinton as Hinton
from .kd import KD as KD
from .kdcl import KDCL as KDCL
from .lskd import LSKD as LSKD
from .no_kd import NoKD as NoKD
from .one import ONE as ONE
from .pcl import PCL as PCL
from .ps_kd import PSKD as PSKD
from .self_kd import SelfKD as SelfKD
from .shake import SHAKE as SHAKE
from .takd import TAKD as TAKD
from .tsb import TSB as TSB

# Their losses, as functions
from . import losses as losses
