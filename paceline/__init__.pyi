from paceline.api.evaluation import EvaluationResult as EvaluationResult
from paceline.api.evaluation import evaluate as evaluate
from paceline.api.policy import TrainedPolicy as TrainedPolicy
from paceline.api.policy import load as load
from paceline.api.training import RunResult as RunResult
from paceline.api.training import train as train
from paceline.callbacks import Callback as Callback
from paceline.checkpoint import CheckpointError as CheckpointError
from paceline.config import Config as Config
from paceline.errors import PacelineError as PacelineError
from paceline.errors import SimulatorError as SimulatorError
from paceline.errors import UsageError as UsageError
from paceline.learner.finite import NonFiniteError as NonFiniteError
from paceline.pool.config import PoolConfig as PoolConfig
from paceline.pool.make import make_pool as make_pool
from paceline.resume import RunFinished as RunFinished
from paceline.session import Session as Session

__version__: str
