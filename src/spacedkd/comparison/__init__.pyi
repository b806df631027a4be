# What `compare` returns
# What a comparison will take
from .compare import ComparisonForecast as ComparisonForecast
from .compare import forecast_comparison as forecast_comparison
from .document import Comparison as Comparison
