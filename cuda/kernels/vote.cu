// Computes a rank's vote from its findings in one thread.

#include "cuda/device/launch.hpp"
#include "cuda/kernels/kernels.hpp"

namespace muonrt::cuda {

namespace {

struct VoteArguments {
  Vote* vote;
  const Findings* findings;
  int64_t fingerprint, orthogonalized;
  bool local_ok;
};

__global__ void cast_vote_kernel(VoteArguments a) {
  const bool finite = a.findings->nonfinite == 0;
  const bool well = a.local_ok && a.findings->failed == 0 && a.findings->first_stale < 0;
  a.vote->consent = well && finite;
  a.vote->fingerprint = a.fingerprint;
  a.vote->nonfinite = well && !finite;
  a.vote->orthogonalized = a.orthogonalized;
  a.vote->zero_matrices = a.findings->zero_matrices;
  a.vote->set_factor(a.findings->factor);
  a.vote->gradient_replicas = a.findings->gradient_replicas;
  a.vote->weight_replicas = a.findings->weight_replicas;
}

}  // namespace

void cast_vote(Vote* vote, const Findings* findings, int64_t fingerprint, int64_t orthogonalized,
               bool local_ok, cudaStream_t stream) {
  launch("cast_vote", cast_vote_kernel, grid_of(1), 1,
         VoteArguments{vote, findings, fingerprint, orthogonalized, local_ok}, stream);
}

}  // namespace muonrt::cuda
