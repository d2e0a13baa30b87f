"""The runs whose summaries are kept in tests/data/report; ``python -m tests.report_cases`` writes those files again."""

from dataclasses import replace
from pathlib import Path

from sweeper.calibration import apply
from sweeper.cards import card
from sweeper.cost import Price, Schedule
from sweeper.record import PredictedTrial, Record, Settings
from sweeper.report import summary, trial_line
from sweeper.trial import CardActivity, Fit, Fragmentation
from sweeper.units import GIB, MIB
from tests.builders import (
    BOUNDARY,
    a_broken,
    a_calibration,
    a_device,
    a_finished_record,
    a_fit,
    a_measured_fit,
    a_prediction,
    a_record,
    a_spec,
    allocated_at,
    an_oom,
    reserved_at,
)

__all__ = ["CASES", "FOLDER", "golden_text"]

FOLDER = Path(__file__).parent / "data" / "report"


def golden_text(record: Record) -> str:
    """All that a terminal shows of ``record``."""
    lines = [trial_line(record, trial) for trial in record.trials]
    shown = summary(record, folder=Path("results/20260102-030405-a run"), color=False)
    return "\n".join([*lines, "", shown]) + "\n"


def _on_cuda() -> Record:
    fits = [(size, a_measured_fit(size)) for size in (1, 2, 4, 8, 16, 32, 64, 128, BOUNDARY, BOUNDARY)]
    failed = an_oom(process_bytes=7950 * MIB, context_bytes=300 * MIB)
    return a_record(
        *fits,
        (BOUNDARY + 1, failed),
        (304, a_measured_fit(304)),
        spec=a_spec(device="cuda"),
        settings=Settings(cap=512, confirm=2, round_to=8),
        prediction=a_prediction(331, (1, 100, 200, 331)),
    )


def _beside_its_prediction() -> Record:
    """A calibrated card: 2 MiB too little but for 64 MiB too much at one batch; the failure was foreseen."""
    sizes = (8, 16, 32, 64, BOUNDARY)
    off = dict.fromkeys(sizes, -2 * MIB) | {64: 64 * MIB}
    predicted = {
        size: PredictedTrial(
            fits=True,
            peak_allocated_bytes=allocated_at(size),
            peak_reserved_bytes=reserved_at(size) + off[size],
        )
        for size in sizes
    }
    beyond = reserved_at(BOUNDARY + 1)
    predicted[BOUNDARY + 1] = PredictedTrial(
        fits=False,
        peak_allocated_bytes=allocated_at(BOUNDARY + 1),
        peak_reserved_bytes=beyond,
        least_capacity_bytes=beyond,
    )
    return a_record(
        *((size, a_measured_fit(size)) for size in (*sizes, BOUNDARY)),
        (BOUNDARY + 1, an_oom(process_bytes=7950 * MIB, context_bytes=300 * MIB)),
        spec=a_spec(device="cuda"),
        settings=Settings(cap=512, confirm=2, margin=0),
        prediction=a_prediction(),
        card=apply(a_calibration(2 * MIB), card("rtx4060")),
        predicted=predicted,
    )


def _all_measured() -> Record:
    """A language model whose loss is NaN in its second step: everything a GPU can be asked, and a list price."""

    def fit(size: int) -> Fit:
        plain = a_measured_fit(size)
        assert plain.samples_per_second is not None
        first, *later = plain.steps
        steps = (replace(first, loss=2.5), *(replace(step, not_finite="nan") for step in later))
        activity = CardActivity(
            samples=9,
            utilization_mean_percent=87.5,
            utilization_max_percent=99,
            power_mean_w=61.25,
            power_max_w=71.5,
            clock_mean_mhz=1710,
            temperature_max_c=63,
        )
        return replace(
            plain,
            steps=steps if size == BOUNDARY else plain.steps,
            tokens_per_second=128 * plain.samples_per_second,
            host_peak_bytes=1500 * MIB,
            activity=activity,
            fragmentation=Fragmentation(
                allocated_bytes=allocated_at(size), reserved_bytes=reserved_at(size), largest_free_bytes=20 * MIB
            ),
        )

    listed = Price(per_hour=0.7992, currency="USD", listed="list price of NVIDIA L4, Modal (one GPU), as of 2026-05-07")
    return a_record(
        *((size, fit(size)) for size in (16, 64, 128, BOUNDARY)),
        (BOUNDARY + 1, an_oom(process_bytes=7950 * MIB, context_bytes=300 * MIB)),
        spec=a_spec(model="tiny-transformer", device="cuda"),
        settings=Settings(cap=512, margin=0, schedule=Schedule(samples=1_281_167, epochs=90, price=listed)),
    )


def _along_sequences() -> Record:
    """Attention that holds its scores: 200 MiB, and with the square of the length; 1,152 tokens fit, 1,160 do not."""

    def fit(length: int) -> Fit:
        allocated = 200 * MIB + length * MIB + 4980 * length * length
        return a_fit(
            8, peak_allocated_bytes=allocated, peak_reserved_bytes=allocated + 20 * MIB, breakdown=None, holdings=None
        )

    return a_record(
        *((length, fit(length)) for length in (8, 32, 128, 512, 1152)),
        (1160, an_oom()),
        spec=a_spec(
            model="hf:gpt2", batch_size=4, seq_len=8, model_args={"n_positions": 4096}, precision="amp-bf16",
            optimizer="adamw", attention="math", accumulate=2,
        ),
        settings=Settings(floor=8, cap=4096, axis="seq-len", step=8, margin=0, positions_argument="n_positions"),
    )  # fmt: skip


def _on_cpu() -> Record:
    def fit(size: int) -> Fit:
        return a_fit(
            size,
            peak_allocated_bytes=(100 + size) * MIB,
            peak_reserved_bytes=(100 + size) * MIB,
            capacity_bytes=2 * GIB,
            breakdown=None,
            holdings=None,
            step_seconds=size / 100,
            samples_per_second=100.0,
        )

    return a_record(
        *((size, fit(size)) for size in (1, 2, 4, 8, 16, 64)),
        spec=a_spec(model="small-cnn", device="cpu", model_args={"depth": 8}),
        settings=Settings(cap=64),
    )


CASES: dict[str, Record] = {
    "boundary-simulated": a_finished_record(prediction=a_prediction()),
    "boundary-cuda": _on_cuda(),
    "beside-prediction": _beside_its_prediction(),
    "calibrated-simulated": a_finished_record(
        spec=a_spec(card=apply(a_calibration(), card("rtx4060"))), prediction=a_prediction()
    ),
    "measured-cuda": _all_measured(),
    "cap-fits-cpu": _on_cpu(),
    "sequence-length": _along_sequences(),
    "nothing-fits": a_record(
        (
            1,
            an_oom(
                operator=None,
                capacity_bytes=GIB,
                free_bytes=4 * MIB,
                allocated_bytes=990 * MIB,
                reserved_bytes=GIB - 4 * MIB,
                peak_allocated_bytes=990 * MIB,
                peak_reserved_bytes=GIB - 4 * MIB,
            ),
        ),
        spec=a_spec(optimizer="adam", memory_limit_bytes=GIB),
        device=a_device(capacity_bytes=GIB),
    ),
    "listed": a_record(
        (8, a_fit(8)),
        (64, a_fit(64)),
        (512, an_oom()),
        settings=Settings(cap=2048, sizes=(8, 64, 512, 1024, 2048)),
    ),
    "fragmented": a_record(
        (1, a_fit(1)),
        (2, a_fit(2)),
        (4, a_fit(4)),
        (8, a_fit(8)),
        (9, an_oom(allocated_bytes=5000 * MIB, reserved_bytes=7600 * MIB)),
        (32, a_fit(32)),
        spec=a_spec(model="models/mine.py:build", device="cuda"),
        settings=Settings(cap=64, margin=0),
    ),
    "broken": a_record((8, a_fit(8)), (16, a_broken()), (16, a_broken())),
    "unfinished": a_record((1, a_fit(1)), (2, a_fit(2))),
    "not-started": a_record(prediction=a_prediction()),
}


if __name__ == "__main__":
    for name, record in CASES.items():
        (FOLDER / f"{name}.txt").write_text(golden_text(record), encoding="utf-8")
