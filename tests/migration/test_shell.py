"""Reading of shell scripts."""

import pytest

from asr_jax.migration.shell import Shell


def read(script, **variables):
    shell = Shell(variables=variables)
    shell.run_text(script)
    return shell


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("A=1", "1"),
        ("A='$B \"'", '$B "'),
        ('B=2; A="x $B ${B}"', "x 2 2"),
        (': ${A:="in quotes"}', "in quotes"),
        (": ${A:=${1:-inner}}", "inner"),
        ("A=; : ${A=kept}", ""),
        ("A=; : ${A:=set}", "set"),
        ("B=3; A=${B:+is set}", "is set"),
        ("B=1; A=${B-default}${C-default}", "1default"),
        ("B=80; A=$((B / 10 * 4))", "32"),
        ("B=3; A=$((B < 2 ? 2 : $B + 1))", "4"),
        ("A=$(date)", ""),
        ("A=1 # a comment", "1"),
        ('A="not # one"', "not # one"),
        ("A=a\\\nb", "ab"),
        ("A=1\nA+=' --x'", "1 --x"),
        ("export A=5", "5"),
        ("[ x = x ] && A=yes", "yes"),
        ("A=no; [ -n \"$B\" ] && A=yes", "no"),
        ("A=no; [ -z \"$B\" ] && A=yes", "yes"),
        ("A=no; [ 10 -gt 9 ] && A=yes", "yes"),
        ("if [ a = b ]; then A=1; elif [ b = b ]; then A=2; else A=3; fi", "2"),
        ("if [ a = a ]; then A=1; elif [ b = b ]; then A=2; else A=3; fi", "1"),
        ("if [ a = b ]; then\n A=1\nelse\n A=3\nfi", "3"),
        ("A=0; if [ a = b ]; then if [ a = a ]; then A=1; else A=2; fi; fi", "0"),
        ("for A in 4 2; do echo $A; done", "4"),
    ],
)  # fmt: skip
def test_variables(script, value):
    assert read(script).variables["A"] == value


def test_variables_of_the_caller_come_before_defaults():
    shell = read(
        ': ${LR:=0.1}\nARGS="--lr=$LR"\npython $LAUNCHER train.py $ARGS "$@" > log', LR="0.5", LAUNCHER="-m launch"
    )
    assert (shell.programs, shell.arguments) == (["train.py"], ["--lr=0.5"])


@pytest.mark.parametrize("begin", ["<<EOF", "<<'EOF'", '<< "EOF"', "<<EOF > f"])
def test_bodies_of_heredocs_are_not_read(begin):
    shell = read(
        f"A=1\ncat > f {begin}\nA=2\n it's a quote\n\tEOF\nEOF\nB=1\ncat <<-EOF\n\tB=2\n\tEOF\ncat <<EOF\nEOF\nC=1"
    )
    assert (shell.variables, shell.notes) == ({"A": "1", "B": "1", "C": "1"}, [])


def test_cases_and_conditional_loops_are_named():
    shell = read(
        "case $N in\n  8) A=1 ;;\n  *) A=2 ;;\nesac\nuntil [ -e x ]; do A=3; done\n"
        "if [ a = b ]; then case $M in x) A=4;; esac; fi"
    )
    assert (shell.variables, shell.notes) == ({}, ["not read: case $N in …", "not read: until [ -e x ] …"])


def test_arrays_are_words():
    shell = read('ARGS=(--lr 0.1  # the rate\n --name "a b")\nARGS+=(--epochs 3)\npython train.py "${ARGS[@]}"')
    assert shell.arguments == ["--lr", "0.1", "--name", "a b", "--epochs", "3"]


def test_functions_are_not_read():
    shell = read("f() {\n  A=1\n  { B=1; }\n}\n{ C=1; }\nD=1")
    assert shell.variables == {"C": "1", "D": "1"}
    assert shell.notes == ["not read: 'f()' '{'"]


def test_what_follows_a_pipe_is_not_read():
    shell = read("if [ a = a ]; then\n echo x | tee y\n python a.py || { A=1; exit 1; }\n B=1\nelse\n B=2\nfi")
    assert (shell.variables, shell.programs) == ({"B": "1"}, ["a.py"])


def test_scripts_call_scripts(tmp_path):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "outer.sh").write_text('set -a\n: ${LR:=0.1}\nbash scripts/inner.sh --more "a b"\n')
    (scripts / "inner.sh").write_text(': ${LR:=0.9}\n: ${EPOCHS:=3}\nARGS+=" --lr $LR"\npython train.py $ARGS "$@"\n')
    shell = Shell()
    shell.run_file(scripts / "outer.sh", [])
    assert shell.arguments == ["--lr", "0.1", "--more", "a b"]
    assert shell.programs[-1] == "train.py"
    assert shell.variables["EPOCHS"] == "3"


def test_what_is_not_read_is_named():
    shell = read("frobnicate --all\nwhile [ 1 = 1 ]; do A=1; done\nfor B in 1 2; do C=$B; done\n[ -d x ] && D=1")
    assert shell.notes == [
        "not read: frobnicate --all",
        "not read: while [ 1 = 1 ] …",
        "of the loop over 1, 2, only B=1 is read",
        "condition not read: '[' -d x ']'",
    ]
    assert "A" not in shell.variables


def test_a_loop_behind_a_pipe_is_not_read():
    shell = read(
        "if [ a = a ]; then\n ls | grep x |\t while read A; do\n  B=$A\n done\n C=1\nelse\n C=2\nfi\npython a.py"
    )
    assert (shell.programs, shell.variables) == (["a.py"], {"C": "1"})
    assert shell.notes == ["not read: ls", "not read: while read A …"]
    shell = read("if [ a = a ]; then\n x > y && {\n A=1\n }\n ls | for B in 1; do C=1; done\n D=1\nelse\n D=2\nfi")
    assert shell.variables == {"D": "1"}


@pytest.mark.parametrize(
    ("words", "program", "arguments"),
    [
        ("torchrun --nproc_per_node 8 caiman/train.py --a 1", "caiman/train.py", ["--a", "1"]),
        ("./zipformer/train.py --a 1", "./zipformer/train.py", ["--a", "1"]),
        ("bash scripts/missing.sh --a", "scripts/missing.sh", ["--a"]),
        ("cargo run --release --bin train -- --a 1", "cargo run train", ["--a", "1"]),
        ("cargo run --bin train -- tokenizer --a 1", "cargo run tokenizer", ["tokenizer", "--a", "1"]),
    ],
)
def test_programs(words, program, arguments):
    shell = read(words)
    assert (shell.programs, shell.arguments) == ([program], arguments)
