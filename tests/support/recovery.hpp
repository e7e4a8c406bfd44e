#pragma once

#include <optional>
#include <vector>

#include "comm/host_comm.hpp"
#include "support/attempts.hpp"

/// Runs whose last step is interrupted during its vote, so that only some ranks receive the result.
namespace recovery {

struct Ended {
  world::Ended step;                   // the failed step, before recover()
  std::optional<muonrt::Error> error;  // the error that recover() throws
  muonrt::Recovery settled;
  std::vector<std::pair<int32_t, int32_t>> clipped;  // hashes after the last committed step
};

struct Result {
  std::vector<Ended> ranks;
  world::Tensors tensors;  // of all ranks, after recover()
};

/// Runs `c`. In the last step, the rank `speaker` receives all votes, commits, and aborts the
/// communicator. The ranks in `cut_off` do not receive the vote of `speaker`. Then all ranks
/// connect again, in a different order, and recover.
/// @param reductions  Number of reductions in a step. The last one is the vote.
inline Result run(const world::Case& c, int speaker, const std::vector<int>& cut_off,
                  int64_t reductions = 1,
                  const world::MakeDevice& make_device = world::host_device) {
  using muonrt::HostComm;
  muonrt::ThreadFaults faults;
  for (const int rank : cut_off)
    faults.drops.push_back(
        {speaker, muonrt::OperationKind::kReduceSum, c.steps * reductions - 1, rank});
  muonrt::ThreadGroup second(c.world);
  Result out;
  out.ranks.resize(static_cast<size_t>(c.world));
  out.tensors = world::tensors_after(
      c,
      [&](world::Rank& rank, muonrt::Comm& comm) {
        muonrt::StepReport report;
        const int last = c.steps - 1;
        for (int step = 0; step < last; ++step) rank.step(step, report);
        Ended& end = out.ranks[static_cast<size_t>(comm.rank())];
        end.step = world::attempt(rank, last);
        if (comm.rank() == speaker)
          dynamic_cast<HostComm&>(comm).transport().abort_with_duplicates(muonrt::Status::kAborted,
                                                                          "planted");
        HostComm survivors(second.transport(c.world - 1 - comm.rank()));
        survivors.set_timeout_ms(60000);
        try {
          end.settled = rank.optimizer().recover(survivors);
        } catch (const muonrt::Error& e) {
          end.error = e;
        }
        end.clipped = rank.optimizer().clipped_heads();
      },
      make_device, std::move(faults));
  return out;
}

}  // namespace recovery
