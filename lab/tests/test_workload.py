"""Workloads: parameters, templates, and numbers out of output."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_lab import machine, paths, tomlfile, workload
from heddle_lab.errors import HeddleError
from heddle_lab.results import Results
from heddle_lab.workload import Workload

CONTENT = {
    "name": "w",
    "summary": "s",
    "source": "s",
    "params": {
        "load": {"default": 1.0, "unit": "tasks per CPU", "summary": "s"},
        "count": {"default": 3, "unit": "messages", "summary": "s"},
        "pause": {"default": 0, "unit": "us", "summary": "s", "minimum": 0},
        "over": {"default": "pipes", "unit": "kind", "summary": "s", "choices": ["pipes", "sockets"]},
    },
    "steps": [{"name": "go", "argv": ["prog", "{{ (load * cpus) | round | int }}", "{{ count }}", "{{ seed }}"]}],
    "metrics": [
        {"name": "elapsed_ns", "step": "go", "unit": "ns", "better": "lower", "primary": True},
        {"name": "time_ns", "step": "go", "unit": "ns", "better": "lower", "regex": r"^Time: ([\d.]+)$", "scale": 1e9},
    ],
}


def make(**changes: object) -> Workload:
    return tomlfile.validate(CONTENT | changes, Workload, "w.toml")


def results(stdout: str) -> Results:
    step = {
        "event": "step",
        "name": "go",
        "virtual_ns": 9,
        "elapsed_ns": 7,
        "stdout": stdout,
    }
    return Results(records=[step, {"event": "done", "virtual_ns": 10}], console="", wall_s=0.0)


def test_templates_see_parameters_and_machine() -> None:
    load = make()
    steps = load.job_steps(load.parameters({"load": 1.25}), machine.load("smp-4"), seed=9)
    assert steps[0].argv == ["prog", "5", "3", "9"]


@pytest.mark.parametrize(
    ("given_params", "complaint"),
    [
        ({"lod": 1.0}, "no parameter 'lod'; known: load, count, pause, over"),
        ({"load": "much"}, "'load' is a number"),
        ({"count": 1.5}, "'count' is an integer"),
        ({"count": 0}, r"'count' is above 0 \(messages\), not 0"),
        ({"load": -1.0}, "'load' is above 0"),
        ({"load": float("nan")}, "'load' is above 0"),
        ({"over": "air"}, r"'over' is pipes or sockets \(kind\), not air"),
        ({"pause": -1}, r"'pause' is at least 0 \(us\), not -1"),
    ],
)
def test_wrong_parameters(given_params: dict[str, workload.Value], complaint: str) -> None:
    with pytest.raises(HeddleError, match=complaint):
        make().parameters(given_params)


@pytest.mark.parametrize(
    ("known", "complaint"),
    [
        ({"default": 0}, "the default, 0, is out of range: it is to be above 0; `minimum` sets another range"),
        ({"default": -1, "minimum": 0}, "the default, -1, is out of range: it is to be at least 0"),
        ({"default": "x", "choices": ["a", "b"]}, "the default, x, is out of range: it is to be a or b"),
    ],
)
def test_a_default_out_of_range_is_refused_with_the_range(known: dict[str, object], complaint: str) -> None:
    with pytest.raises(HeddleError, match=rf"params\.count: {complaint}$"):
        make(params={"count": {**known, "unit": "messages", "summary": "s"}})


def test_a_text_may_look_like_a_number() -> None:
    weights = {"weights": {"default": "100,200", "unit": "cpu.weight", "summary": "s"}}
    name, value = workload.parse_param("weights=300")
    assert make(params=weights).parameters({name: value}) == {"weights": "300"}


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [(["{{ nope }}"], "'nope' is undefined"), (["{{ 1 / 0 }}"], "zero"), (["{{ if }}"], "step go"), ([], "argv")],
)
def test_wrong_template(argv: list[str], complaint: str) -> None:
    load = make(steps=[{"name": "go", "argv": argv}])
    with pytest.raises(HeddleError, match=complaint):
        load.job_steps(load.parameters({}), machine.load("smp-4"), seed=1)


BOX = machine.load("smp-4")


def measure(load: Workload, stdout: str) -> dict[str, int | float]:
    return load.measure(results(stdout), load.parameters({}), BOX)


def test_metrics_come_from_time_and_text() -> None:
    assert measure(make(), "Running\nTime: 0.25\n") == {"elapsed_ns": 7, "time_ns": 250_000_000}


@pytest.mark.parametrize(
    ("expression", "number"),
    [("latency.p50", 1.5), ("threads | map(attribute='ns') | max - count", 6), ("[cpus, 1] | min * load", 1)],
)
def test_metric_by_expression(expression: str, number: float) -> None:
    metric = {"name": "m", "step": "go", "unit": "ns", "better": "lower", "value": expression}
    output = '{"latency": {"p50": 1.5}, "threads": [{"ns": 4}, {"ns": 9}]}'
    assert measure(make(metrics=[metric]), output) == {"m": number}


@pytest.mark.parametrize(
    ("name", "enough"), [("m_ns.p50", 20), ("m_ns.p90", 100), ("m_ns.p99", 1000), ("m_ns.p999", 10_000)]
)
def test_a_percentile_of_too_few_samples_is_left_out(name: str, enough: int) -> None:
    about = {"name": name, "step": "go", "unit": "ns", "better": "lower", "value": "waits.p", "samples": "waits.count"}
    load = make(metrics=[about])
    assert measure(load, f'{{"waits": {{"count": {enough}, "p": 7}}}}') == {name: 7}
    # The program may leave out what would not be used.
    assert measure(load, f'{{"waits": {{"count": {enough - 1}}}}}') == {}
    with pytest.raises(HeddleError, match=r"no number at 'waits\.count' in the output of step 'go'"):
        measure(load, '{"waits": {"cuont": 5, "p": 7}}')


def test_samples_may_be_lines_or_known_before() -> None:
    about = {
        "name": "m.p50",
        "step": "go",
        "unit": "",
        "better": "lower",
        "regex": r"^(\d+)$",
        "value": "matches | min",
    }
    lines = make(metrics=[about | {"samples": "matches | length"}])
    assert measure(lines, "7\n" * 20) == {"m.p50": 7}
    assert measure(lines, "7\n" * 19) == {}
    known = make(metrics=[about | {"samples": "count * cpus"}])
    assert measure(known, "7\n") == {}
    assert known.measure(results("7\n"), known.parameters({"count": 5}), BOX) == {"m.p50": 7}


def test_only_a_percentile_says_of_how_many_samples_it_is() -> None:
    about = {"name": "m", "step": "go", "unit": "", "better": "lower", "value": "x", "samples": "count"}
    with pytest.raises(HeddleError, match="`samples` says of how many a percentile is"):
        make(metrics=[about])


@pytest.mark.parametrize("name", sorted(path.stem for path in paths.WORKLOADS.glob("*.toml")))
def test_every_shipped_percentile_does(name: str) -> None:
    percentiles = [metric for metric in workload.load(name).metrics if re.search(r"\.p\d+$", metric.name)]
    assert all(metric.samples for metric in percentiles)


@pytest.mark.parametrize(("percent", "bucket"), [(50, 2), (75, 10), (99, 300), (100, 300)])
def test_percentiles_of_histograms(percent: float, bucket: int) -> None:
    value = f"threads | percentile({percent})"
    metric = {"name": "m", "step": "go", "unit": "ns", "better": "lower", "value": value}
    output = '{"threads": [{"2": 3, "10": 1}, {"10": 2, "300": 1, "1": 1}, {}]}'
    assert measure(make(metrics=[metric]), output) == {"m": bucket}


def test_no_samples_are_no_percentile() -> None:
    metric = {"name": "m", "step": "go", "unit": "ns", "better": "lower", "value": "threads | percentile(99)"}
    with pytest.raises(HeddleError, match="metric 'm': no number"):
        measure(make(metrics=[metric]), '{"threads": [{}]}')


def test_a_window_is_a_parameter_that_is_a_number() -> None:
    assert make(window="count").window == "count"
    for name in ("nope", "over"):
        with pytest.raises(HeddleError, match=f"window: no parameter '{name}' that is a number"):
            make(window=name)


@pytest.mark.parametrize(("number", "gain"), [(1, 100), (8, 100), (9, 60), (16, 60), (17, 26)])
def test_metric_against_the_best_places(number: int, gain: float) -> None:
    """The ninth of several hogs gets the first slow core, the 17th the second thread of a fast one."""
    box = machine.load("alderlake-8p8e")
    value = f"best_speeds[{number}] - best_speeds[{number - 1}]"
    made = make(metrics=[{"name": "m", "step": "go", "unit": "", "better": "higher", "value": value}])
    assert made.measure(results("{}"), made.parameters({}), box) == {"m": pytest.approx(gain)}


@pytest.mark.parametrize(
    ("expression", "number"),
    [("matches | sum", 12), ("matches | max * count", 21), ("1e9 * count / elapsed_ns", 3e9 / 7)],
)
def test_metric_over_all_matches(expression: str, number: float) -> None:
    metric = {"name": "m", "step": "go", "unit": "", "better": "higher", "regex": r"^rate (\d+)$", "value": expression}
    assert measure(make(metrics=[metric]), "rate 5\nnoise\nrate 7\n") == {"m": pytest.approx(number)}


def test_metric_of_work_and_time_needs_no_output() -> None:
    metric = {"name": "m", "step": "go", "unit": "/s", "better": "higher", "value": "count * 1e9 / elapsed_ns"}
    assert measure(make(metrics=[metric]), "anything") == {"m": pytest.approx(3e9 / 7)}


def test_no_match_is_no_zero() -> None:
    metric = {"name": "m", "step": "go", "unit": "", "better": "higher", "regex": r"(\d+)", "value": "matches | sum"}
    with pytest.raises(HeddleError, match="metric 'm': no number"):
        measure(make(metrics=[metric]), "command not found")


@pytest.mark.parametrize(("load", "names"), [(1.0, ["go"]), (2.0, ["extra", "go"])])
def test_step_under_a_condition(load: float, names: list[str]) -> None:
    extra = {"name": "extra", "argv": ["x"], "when": "load > 1"}
    loaded = make(steps=[extra, {"name": "go", "argv": ["y"]}])
    steps = loaded.job_steps(loaded.parameters({"load": load}), BOX, seed=1)
    assert [step.name for step in steps] == names


@pytest.mark.parametrize("condition", ["lod > 1", "load >", "{{ load }}"])
def test_wrong_condition_is_refused(condition: str) -> None:
    loaded = make(steps=[{"name": "go", "argv": ["x"], "when": condition}])
    with pytest.raises(HeddleError, match="workload 'w', step go"):
        loaded.job_steps(loaded.parameters({}), BOX, seed=1)


def test_a_step_may_be_given_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"{{": 1}')
    loaded = make(steps=[{"name": "go", "argv": ["x"], "stdin": f"{{{{ content('{tmp_path}/a.json') }}}}"}])
    assert loaded.job_steps(loaded.parameters({}), BOX, seed=1)[0].stdin == '{"{{": 1}'
    (tmp_path / "a.json").unlink()
    with pytest.raises(HeddleError, match=r"a\.json: no such file"):
        loaded.job_steps(loaded.parameters({}), BOX, seed=1)


def test_no_levels_of_cgroups_is_the_root() -> None:
    loaded = make(steps=[{"name": "go", "argv": ["x"], "cgroup": "{{ (['g'] * (count - 3)) | join('/') }}"}])
    assert loaded.job_steps(loaded.parameters({}), BOX, seed=1)[0].cgroup is None
    assert loaded.job_steps(loaded.parameters({"count": 5}), BOX, seed=1)[0].cgroup == "g/g"


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        ('{"latency": 3}', r"no number at 'latency.p50'"),
        ("{}", r"no number at 'latency.p50'"),
        ("Segmentation fault", "no JSON object"),
        ("[1]", "no JSON object but list"),
    ],
)
def test_expression_without_its_number(output: str, complaint: str) -> None:
    metric = {"name": "m", "step": "go", "unit": "ns", "better": "lower", "value": "latency.p50"}
    with pytest.raises(HeddleError, match=complaint):
        measure(make(metrics=[metric]), output)


@pytest.mark.parametrize("source", [{"value": "a +"}, {"regex": "("}, {"regex": "b"}, {"regex": "(a)(b)"}])
def test_wrong_source_is_refused_on_loading(source: dict[str, str]) -> None:
    with pytest.raises(HeddleError, match=r"w\.toml: metrics\.0: metric 'm'"):
        make(metrics=[{"name": "m", "step": "go", "unit": "ns", "better": "lower"} | source])


def test_missing_number_names_the_metric() -> None:
    with pytest.raises(HeddleError, match="metric 'time_ns': no number"):
        measure(make(), "hackbench: failed")


def test_metric_of_an_unknown_step_is_refused() -> None:
    metric = {"name": "x", "step": "nope", "unit": "ns", "better": "lower"}
    with pytest.raises(HeddleError, match=r"w.toml: .*names no step"):
        make(metrics=[metric])


def test_a_metric_is_left_out_where_there_was_nothing_to_measure() -> None:
    metrics = [{"name": name, "step": "go", "unit": "ns", "better": "lower"} for name in ("a_ns", "b_ns")]
    load = make(metrics=[metrics[0] | {"when": "count < 8", "primary": True}, metrics[1]])
    for count, names in (1, {"a_ns", "b_ns"}), (8, {"b_ns"}):
        assert load.measure(results(""), load.parameters({"count": count}), BOX).keys() == names
    slept = make(
        metrics=[{"name": "m", "step": "go", "unit": "", "better": "lower", "value": "waits.p50", "when": "waits"}]
    )
    assert measure(slept, '{"waits": {"p50": 3}}') == {"m": 3}
    assert measure(slept, '{"waits": null}') == {}
    with pytest.raises(HeddleError, match=r"metric 'm': when: 'waits' is undefined in the output of step 'go'"):
        measure(slept, '{"wiats": null}')


def test_a_metric_may_be_judged_by_parameters() -> None:
    metric = {"name": "x_ns", "step": "go", "unit": "ns", "better": "lower", "judged": "count >= 8"}
    [few, many] = [make(metrics=[metric]).metrics[0].is_judged({"count": count}) for count in (1, 8)]
    assert (few, many) == (False, True)
    with pytest.raises(HeddleError, match=r"w.toml: .*judged: no parameter 'cuont'"):
        make(metrics=[metric | {"judged": "cuont >= 8"}])


def test_a_workload_has_one_primary_metric_and_a_single_one_is_it() -> None:
    first, second = ({"name": name, "step": "go", "unit": "ns", "better": "lower"} for name in ("a_ns", "b_ns"))
    main = {"primary": True}
    assert make(metrics=[first]).primary({}) == "a_ns"
    assert make(metrics=[first, second | main]).primary({}) == "b_ns"
    assert make(metrics=[first, second | {"judged": False}]).primary({}) == "a_ns"
    assert make(metrics=[first | {"judged": False}]).primary({}) is None
    mend = r"write `primary = true` in exactly one \[\[metrics\]\] \(a_ns, b_ns\)"
    with pytest.raises(HeddleError, match=rf"w.toml: .*no metric is primary: {mend}"):
        make(metrics=[first, second])
    with pytest.raises(HeddleError, match=rf"w.toml: .*several metrics are primary: {mend}"):
        make(metrics=[first | main, second | main])


def test_which_metric_is_primary_may_depend_on_parameters() -> None:
    about = {"step": "go", "unit": "ns", "better": "lower"}
    rate = about | {"name": "rate", "primary": "count < 8", "judged": "count < 8"}
    load = make(metrics=[rate, about | {"name": "wait_ns", "primary": "count >= 8"}, about | {"name": "other_ns"}])
    assert [load.primary({"count": count}) for count in (3, 8)] == ["rate", "wait_ns"]
    with pytest.raises(HeddleError, match=r"w.toml: .*primary: no parameter 'cuont'"):
        make(metrics=[rate | {"primary": "cuont < 8"}])


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.text("abc", min_size=1)))
def test_parameters_are_read_as_typed(value: workload.Value) -> None:
    assert workload.parse_param(f"key={value}") == ("key", value)


def test_parameter_without_value() -> None:
    with pytest.raises(HeddleError, match="KEY=VALUE"):
        workload.parse_param("load")
