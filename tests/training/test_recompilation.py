import jax
import jax.numpy as jnp

from asr_jax.training.programs import watch_compilations


def test_what_is_compiled_late_is_named_with_its_reason_and_nothing_else_is():
    def doubled(x):
        return x * 2 + 1

    function, reports = jax.jit(doubled), []
    three, four = jnp.arange(3.0), jnp.arange(4.0)
    function(three)
    with watch_compilations(lambda **about: reports.append(about)):
        function(three)
        assert reports == []
        function(four)
    assert [each["function"] for each in reports] == ["jit(doubled)"]
    assert "now f32[4] and before f32[3]" in reports[0]["reason"]
    function(jnp.arange(5.0))
    assert len(reports) == 1
