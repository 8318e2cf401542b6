"""Mistakes of the kinds that only a GPU would show, each with the test that must find it without one."""

from __future__ import annotations

from dataclasses import dataclass

LOOP = "modules/trainer/TrainingLoop.py"
SWAP = "modules/layers/BlockSwap.py"
TRANSFERS = "modules/layers/transfers.py"
REPORT = "modules/trainer/LateReport.py"
HOST_STATE = "modules/trainer/HostState.py"
OFFLOAD = "modules/layers/ActivationOffload.py"

RUN = "tests/trainer/test_pretended_gpu.py::test_a_run_uses_the_gpu_as_it_should[{}]"
OPTIONS_RUN = RUN.format("sd15: U-Net, all that has part in losses and LoRA")
ADAMW = "tests/trainer/test_pretended_gpu.py::test_an_optimizer_waits_no_more_than_is_known_and_goes_on_exactly[adamw]"
SWAP_TESTS = "tests/layers/test_block_swap.py"
SWAPPED = f"{SWAP_TESTS}::test_no_weight_is_read_before_the_event_of_its_copy_nor_overwritten_while_it_may_be_read"
HOST_STATE_TESTS = "tests/trainer/test_host_state.py"
OFFLOAD_TESTS = "tests/layers/test_activation_offload.py"


@dataclass(frozen=True)
class Mistake:
    """name: what the code does wrong. text: what `replacement` stands for in `file`, where it occurs once.

    test: the one that must fail. reason: what its output must say then (a regular expression).
    """

    name: str
    file: str
    text: str
    replacement: str
    test: str
    reason: str


MISTAKES = (
    # --- streams and events ---
    Mistake(
        "a swapped block computes before its copy has come",
        SWAP,
        "            self._transfers.finish(self._pending.pop(number))\n        # a step repeats",
        "            self._pending.pop(number)\n        # a step repeats",
        SWAPPED,
        r"nan",
    ),
    Mistake(
        "the optimizer steps before its state has come from RAM",
        HOST_STATE,
        "            self._transfers.finish(fetched.copy)\n            fetched.shown",
        "            fetched.shown",
        f"{HOST_STATE_TESTS}::test_curve_weights_and_state_are_those_with_the_state_on_the_device[adamw-False]",
        r"nan|None",
    ),
    Mistake(
        "state is copied over that of the weights that are stepped",
        HOST_STATE,
        "NUM_SLOTS = 2",
        "NUM_SLOTS = 1",
        f"{HOST_STATE_TESTS}::test_room_on_the_device_that_grows_is_not_freed_while_it_is_copied_from",
        r"same_state",
    ),
    Mistake(
        "copies do not wait for what is computed",
        TRANSFERS,
        "        self._stream.wait_stream(torch.cuda.current_stream(self._device))\n",
        "",
        SWAPPED,
        r"assert .*waited_for",
    ),
    Mistake(
        "copies are made on the stream that computes",
        TRANSFERS,
        "        with torch.cuda.stream(self._stream):\n            target.copy_",
        "        target.copy_",
        SWAPPED,
        r"assert 0 > 30",
    ),
    Mistake(
        "a GPU gets the transfers of a CPU",
        TRANSFERS,
        "CudaTransfers(device) if is_gpu(device) else DirectTransfers()",
        "DirectTransfers()",
        "tests/layers/test_transfers.py::test_a_gpu_gets_a_stream_of_its_own_and_pinned_memory",
        r"isinstance\(.*CudaTransfers\)",
    ),
    Mistake(
        "the event of a report is recorded before its copy",
        REPORT,
        "            self._figures = (make() if host is None else host).copy_(figures, non_blocking=True)\n"
        "            self._event = torch.cuda.Event(blocking=True)"
        "  # else a core would be busy while the host waits for it\n"
        "            self._event.record(torch.cuda.current_stream(figures.device))\n",
        "            self._event = torch.cuda.Event(blocking=True)"
        "  # else a core would be busy while the host waits for it\n"
        "            self._event.record(torch.cuda.current_stream(figures.device))\n"
        "            self._figures = (make() if host is None else host).copy_(figures, non_blocking=True)\n",
        ADAMW,
        r"NaN",
    ),
    Mistake(
        "a report is read without waiting for its copy",
        REPORT,
        "            self._event.synchronize()\n",
        "            pass\n",
        ADAMW,
        r"NaN",
    ),
    # --- memory that is used while it is copied ---
    Mistake(
        "room for state on the device is freed while it is copied to RAM",
        HOST_STATE,
        "            self._transfers.synchronize()\n            device = ",
        "            device = ",
        f"{HOST_STATE_TESTS}::test_room_on_the_device_that_grows_is_not_freed_while_it_is_copied_from",
        r"same_state|num_lost",
    ),
    Mistake(
        "an activation is freed while it is copied to RAM",
        OFFLOAD,
        "if kept.num_uses == 1 and kept not in self._leaving:",
        "if kept.num_uses == 1:",
        f"{OFFLOAD_TESTS}::test_an_input_is_not_freed_while_it_is_copied_even_if_its_copy_is_needed_no_more",
        r"num_lost",
    ),
    Mistake(
        "room for an activation is freed while it is copied there",
        OFFLOAD,
        "            self._arrive(kept)\n        call = ",
        "            self._coming.pop(kept)\n        call = ",
        f"{OFFLOAD_TESTS}::test_a_backward_pass_that_ended_early_leaves_no_copy_to_memory_that_is_free",
        r"num_lost",
    ),
    # --- memory that is not pinned ---
    Mistake(
        "host buffers are not pinned",
        "modules/layers/PinnedMemory.py",
        "make(num_bytes, dtype=torch.uint8, pin_memory=True)",
        "make(num_bytes, dtype=torch.uint8)",
        SWAPPED,
        r"most_pinned",
    ),
    Mistake(
        "batches are not pinned",
        "modules/trainer/GenericTrainer.py",
        "            batches = [batch.pinned() for batch in batches] if pin else batches\n",
        "",
        "tests/trainer/test_pretended_gpu.py::test_a_run_that_goes_on_uses_the_gpu_as_it_should",
        r"a copy of memory that is not pinned, at modules/data/Batch.py",
    ),
    # --- waits ---
    Mistake(
        "a value is read for the unit of the gradient",
        LOOP,
        "count, scale = totals[COUNT], ",
        "count, scale = totals[COUNT].new_tensor(totals[COUNT].item()), ",
        ADAMW,
        r"reads a value, at modules/trainer/TrainingLoop.py",
    ),
    Mistake(
        "a value is read after the step, to limit norms",
        "modules/methods/max_norm.py",
        "ratio ** (1 / len(factors))",
        "ratio.item() ** (1 / len(factors))",
        OPTIONS_RUN,
        r"reads a value, at modules/methods/max_norm.py",
    ),
    Mistake(
        "the size of a loss depends on values",
        "modules/methods/DenoisingLoss.py",
        "        losses = losses * batch.weight\n",
        "        losses = (losses * batch.weight)[batch.weight > 0]\n",
        OPTIONS_RUN,
        r"an index by a mask has to know how many are true, at modules/methods/DenoisingLoss.py",
    ),
    Mistake(
        "a constant is made on the host in each step",
        "modules/methods/DenoisingLoss.py",
        "        losses = losses * batch.weight\n",
        "        losses = losses * batch.weight * torch.tensor([1.0], device=losses.device)\n",
        OPTIONS_RUN,
        r"a copy from the CPU without non_blocking, at modules/methods/DenoisingLoss.py",
    ),
    # --- devices ---
    Mistake(
        "stochastic rounding draws on the CPU",
        "modules/trainer/stochastic_rounding.py",
        "dtype=torch.int32, device=values.device)",
        "dtype=torch.int32)",
        RUN.format("sd15: full, rounded by chance, state in RAM"),
        r"Left on the CPU: torch.int32",
    ),
    Mistake(
        "rank dropout draws on the CPU",
        "modules/methods/adapter_dropout.py",
        "(torch.rand(shape, device=output.device) >= of_ranks)",
        "(torch.rand(shape) >= of_ranks)",
        OPTIONS_RUN,
        r"Left on the CPU: torch.bool",
    ),
    Mistake(
        "the step counter of a fused optimizer stays on the CPU after a resume",
        "modules/trainer/optimizers.py",
        'stays = state_key == "step" and not value.shape and not counts_on_device[param]',
        'stays = state_key == "step" and not value.shape',
        ADAMW,
        r"Left on the CPU: torch.float32\[\]",
    ),
    Mistake(
        "the validation loss is summed on the CPU",
        "modules/trainer/validation_loss.py",
        "torch.zeros((), dtype=torch.float64, device=self.runtime.device)",
        "torch.zeros((), dtype=torch.float64)",
        OPTIONS_RUN,
        r"Left on the CPU: torch.float64\[\]",
    ),
    Mistake(
        "a rank does not make its GPU the current one",
        "modules/distributed/usable_gpus.py",
        "    torch.cuda.set_device(device)\n",
        "",
        "tests/distributed/test_usable_gpus.py::test_the_gpu_of_a_rank_becomes_the_current_one",
        r"assert \[\] == \[",
    ),
    Mistake(
        "memory is freed on another GPU than that of the run",
        "modules/layers/device_memory.py",
        "    with torch.cuda.device(device):\n        torch.cuda.empty_cache()\n",
        "    torch.cuda.empty_cache()\n",
        "tests/layers/test_device_memory.py",
        r"index=0\)\] == \[",
    ),
    # --- numbers ---
    Mistake(
        "the gradient through a quantized layer is float32",
        "modules/layers/QuantizedLinear.py",
        "form.shape, gradient.dtype)",
        "form.shape, torch.float32)",
        RUN.format("flux1: packed, guidance, int8"),
        r"same dtype",
    ),
    Mistake(
        "autocast's copies of weights stay when averages replace these",
        "modules/trainer/Ema.py",
        "    forget_casts()  # they are kept by parameter object, which has not changed\n    try:\n",
        "    try:\n",
        "tests/trainer/test_ema.py::test_swapped_weights_take_effect_inside_autocast",
        r"assert .* == .* ± ",
    ),
    Mistake(
        "a moment is laid out in another way than its weight, which fused kernels do not look at",
        "modules/trainer/optimizers.py",
        "laid_out = torch.empty_like(param, dtype",
        "laid_out = torch.empty(param.shape, dtype",
        "tests/trainer/test_optimizers.py::test_an_optimizer_goes_on_from_its_state_bit_for_bit",
        r"torch.equal\(second.weight, straight.weight\)",
    ),
)
