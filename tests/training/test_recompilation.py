import jax
import jax.numpy as jnp

from asr_jax.training.recompilation import CompileWatch


def test_what_is_compiled_late_is_named_with_its_reason_and_nothing_else_is():
    def doubled(x):
        return x * 2 + 1

    function, told = jax.jit(doubled), []
    three, four = jnp.arange(3.0), jnp.arange(4.0)
    function(three)
    with CompileWatch(lambda *about: told.append(about)):
        function(three)
        assert told == []
        function(four)
    assert [name for name, _, _ in told] == ["jit(doubled)"]
    assert "now f32[4] and before f32[3]" in told[0][2]
    function(jnp.arange(5.0))
    assert len(told) == 1
