// Tests the real NCCL with streams that are being captured. On the emulated GPU, nccl_comm_test
// runs the same cases with a fake NCCL.

#include "backend/cuda_comm.hpp"
#include "comm/self_transport.hpp"
#include "comm/transport_bootstrap.hpp"
#include "cuda/nccl/nccl_capture.hpp"

using namespace muonrt;
using namespace cuda_test;

TEST_CASE("nccl on a GPU: NCCL's kernels for a message to itself are captured and replayed",
          "[cuda]") {
  if (is_emulated()) return;
  check_captured_exchange(cuda::nccl_api());
}

TEST_CASE("nccl on a GPU: operations on a captured stream are rejected with an error that names it",
          "[cuda]") {
  if (is_emulated()) return;
  const auto comm = make_nccl_comm(make_bootstrap(make_self_transport()), {});
  Machine machine(make_device(true));
  check_capture_rejected(*comm, machine, "nccl: the stream is being captured");
}

TEST_CASE("staged: operations on a captured stream are rejected, and the capture stays valid",
          "[cuda]") {
  const auto comm = make_staged_comm(make_bootstrap(make_self_transport()), 0);
  Machine machine(make_device(true));
  check_capture_rejected(*comm, machine, "staged: the stream is being captured");
}
