"""Config of a short run of an LSTM transducer with random state passing, in sequences of three batches.

Its delay penalty begins with the first validation.
"""

from dataclasses import replace

from asr_jax.config import Experiment
from asr_jax.heads.transducer import Transducer
from asr_jax.losses.transducer import Penalties, Since
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.nn.recurrent.state_passing import StatePassing
from tests.resume_config import experiment as of_ctc


def experiment() -> Experiment:
    usual = of_ctc()
    encoder = replace(LSTMEncoder.testing(), dim=8, num_mels=20)
    head = Transducer(
        prediction=LSTMPrediction(8, num_layers=1, dropout=0.2),
        joint_dim=12,
        dropout=0.3,
        penalties=Penalties(delay=0.05, delay_since=Since(wer=100.0)),
    )
    training = replace(
        usual.training,
        pass_states=StatePassing((0.0, 0.0, 1.0)),
        validation=replace(usual.training.validation, every=2),
    )
    model = replace(usual.model, encoder=encoder, heads={"transducer": head})
    return replace(usual, name="resume_transducer", model=model, training=training)
