"""The objective of a base follows from its scheduler."""

import pytest

from modules.config.errors import UserError
from modules.families.prediction import objective_of
from modules.families.sd15 import SD15


def test_a_base_that_predicts_something_else_is_refused():
    assert objective_of(SD15, {"prediction_type": "v_prediction"}).prediction_type == "v_prediction"
    with pytest.raises(UserError, match=r"^model\.prediction_type auto: the base predicts 'sample', and only epsilon"):
        objective_of(SD15, {"prediction_type": "sample"})
