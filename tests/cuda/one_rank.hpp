#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>

#include "cuda/nccl/worlds.hpp"
#include "optimizer/agreement.hpp"

namespace cuda_test {

/// The only rank of a case. Its steps wait for a caller's stream.
struct OneRank {
  OneRank(const world::Case& c, const MakeComm& make_comm)
      : group(1),
        comm(make_comm(group.transport(0))),
        machine(world_device()),
        mirror(machine),
        rank(c, *comm, world_device, &mirror) {
    rank.fill_gradients(0);
  }
  std::optional<muonrt::Error> step(cudaStream_t stream) {
    return muonrt::capture_error([&] {
      muonrt::StepReport report;
      rank.optimizer().step(
          [&] {
            muonrt::StepArgs s;
            s.lr = 0.1;
            s.stream = stream;
            return s;
          },
          report);
    });
  }

  muonrt::ThreadGroup group;
  std::unique_ptr<muonrt::Comm> comm;
  Machine machine;
  DeviceMirror mirror;
  world::Rank rank;
};

}  // namespace cuda_test
