// A rank's ballot from its findings; one thread.

#include "cuda/device/launch.hpp"
#include "cuda/kernels/kernels.hpp"

namespace muonrt::cuda {

namespace {

struct BallotArguments {
  Ballot* ballot;
  const Findings* findings;
  int64_t stamp, orthogonalized;
  bool local_ok;
};

__global__ void cast_ballot_kernel(BallotArguments a) {
  const bool finite = a.findings->nonfinite == 0;
  const bool well = a.local_ok && a.findings->failed == 0;
  a.ballot->consent = well && finite;
  a.ballot->stamp = a.stamp;
  a.ballot->nonfinite = well && !finite;
  a.ballot->orthogonalized = a.orthogonalized;
  a.ballot->zero_matrices = a.findings->zero_matrices;
  a.ballot->set_factor(a.findings->factor);
  a.ballot->gradient_replicas = a.findings->gradient_replicas;
  a.ballot->weight_replicas = a.findings->weight_replicas;
}

}  // namespace

void cast_ballot(Ballot* ballot, const Findings* findings, int64_t stamp, int64_t orthogonalized,
                 bool local_ok, cudaStream_t stream) {
  launch("cast_ballot", cast_ballot_kernel, grid_of(1), 1,
         BallotArguments{ballot, findings, stamp, orthogonalized, local_ok}, stream);
}

}  // namespace muonrt::cuda
