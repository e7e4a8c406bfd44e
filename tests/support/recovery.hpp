#pragma once

#include <algorithm>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/host_comm.hpp"
#include "support/world.hpp"

/// Worlds whose last step ends inside its vote: some ranks have heard it, others not.
namespace recovery {

struct Ended {
  muonrt::Status step = muonrt::Status::kOk;
  std::optional<muonrt::Error> error;  // of recover
  muonrt::Recovery settled;
  bool unchanged = false;                            // by the failed step, before recover
  std::vector<std::pair<int32_t, int32_t>> clipped;  // heads of the last committed step, after it
};

struct Result {
  std::vector<Ended> ranks;
  world::Tensors tensors;  // of all ranks, after recover
  bool replicas_equal = true;
};

/// Runs `c`; in its last step the ranks of `cut_off` never get the ballot of `speaker`, who has all
/// of them, commits, and ends the communicator. Then all ranks meet anew, in another order.
/// @param reductions  sums over the ranks in a step; the vote is the last one.
inline Result run(const world::Case& c, int speaker, const std::vector<int>& cut_off,
                  int64_t reductions = 1,
                  const world::MakeDevice& make_device = world::host_device) {
  constexpr int64_t kLong = 120'000;  // ms
  using muonrt::HostComm;
  muonrt::ThreadFaults faults;
  for (const int rank : cut_off)
    faults.drops.push_back(
        {speaker, muonrt::OperationKind::kReduceSum, c.steps * reductions - 1, rank});
  muonrt::ThreadGroup second(c.world);
  Result out;
  out.ranks.resize(static_cast<size_t>(c.world));
  std::vector<std::vector<bool>> seen;
  std::mutex mutex;
  world::on_ranks(
      c.world,
      [&](muonrt::Comm& comm) {
        comm.set_timeout_ms(kLong);
        world::Rank rank(c, comm, make_device);
        muonrt::StepReport report;
        const int last = c.steps - 1;
        for (int step = 0; step < last; ++step) rank.step(step, report);
        const world::Tensors before = rank.tensors();
        Ended& end = out.ranks[static_cast<size_t>(comm.rank())];
        try {
          end.step = rank.step(last, report);
        } catch (const muonrt::Error& e) {
          end.step = e.status();
        }
        end.unchanged = before == rank.tensors();
        if (comm.rank() == speaker)
          dynamic_cast<HostComm&>(comm).transport().abort_family(muonrt::Status::kAborted,
                                                                 "planted");
        HostComm survivors(second.transport(c.world - 1 - comm.rank()));
        survivors.set_timeout_ms(kLong);
        try {
          end.settled = rank.optimizer().recover(survivors);
        } catch (const muonrt::Error& e) {
          end.error = e;
        }
        end.clipped = rank.optimizer().clipped_heads();
        const std::lock_guard lock(mutex);
        out.replicas_equal = rank.add_to(out.tensors, seen) && out.replicas_equal;
      },
      std::move(faults));
  return out;
}

}  // namespace recovery
