"""The training step on meta tensors: no arithmetic, no GPU, and every allocation that a GPU would see.

Theory of operation.  These act together, each in a module of its own:

``tracer``      a ``TorchDispatchMode``.  It sits below autograd, so it sees the operators that reach a kernel, in
                forward and in backward.  A new ``untyped_storage()`` among an operator's results is an allocation, and
                the storage's end is the free; autograd runs as it always does, so lifetimes are the real ones.
``ledger``      what the tracer tells: it hands each event at once to a caching allocator, which may refuse, and
                keeps the log that becomes a ``Trace`` and the breakdown.
``autocast``    the casts of ``torch.autocast("cuda")``, and ``selection``, the composite operators that choose another
                kernel on CUDA (dropout, attention, softmax).  Both are Python kernels on dispatch keys that nobody else
                uses, above autograd: the place in the dispatcher where the C++ does the same, so composite C++ code
                that calls ``log_softmax`` three levels down is treated as on a GPU.  They act only inside ``session``.
``kernels``     what the CUDA kernel of an operator does with memory that the meta kernel does not: workspaces, layouts,
                scratch, the order of its results.  One small function a rule; ``convolution``,
                ``attention``, ``cudnn_attention``, ``reductions``, ``pointwise``, ``recurrent`` (cuDNN's networks,
                ``recurrent_weights`` theirs) and ``recurrent_cells`` (PyTorch's own) hold theirs;
                ``recurrent_selection`` tells which of the two runs.
``modules``     which module an operator runs for; in backward, the module whose forward made the node.
``values``      what small tensors hold, when a step needs it; ``deciding`` what follows where a value is asked for.
``optimizing``  the optimizers' and the gradient scaler's CUDA paths.

What this does not know: which plan cuDNN chooses for a convolution (``cudnn`` has a rule of thumb), values
that arithmetic on the model's outputs makes (a model that reads such a number on the host ends with an error that
names the operator), and time.
"""

from sweeper.worker.tracing.ledger import Ledger, SimulatedOutOfMemory
from sweeper.worker.tracing.optimizing import SimulatedGradScaler, stepping_as_on_cuda
from sweeper.worker.tracing.tracer import Tracer

__all__ = ["Ledger", "SimulatedGradScaler", "SimulatedOutOfMemory", "Tracer", "stepping_as_on_cuda"]
