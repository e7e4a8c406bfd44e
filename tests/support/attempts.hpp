#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/world.hpp"

/// Functions for ranks that run the same script and continue after a step has failed.
namespace world {

/// How a step ended on one rank.
struct Ended {
  muonrt::Status status = muonrt::Status::kOk;
  std::string message;    // error message; empty if there is no error
  bool unchanged = true;  // whether parameters and state are bitwise unchanged
  muonrt::StepReport report;

  bool says(const std::string& part) const { return message.find(part) != std::string::npos; }
};

/// Runs a step with the current gradients. Returns its error instead of throwing it.
inline Ended attempt_only(Rank& rank, int64_t step) {
  Ended out;
  const Tensors before = rank.tensors();
  try {
    out.status = rank.step_only(step, out.report);
  } catch (const muonrt::Error& e) {
    out.status = e.status();
    out.message = e.message();
  }
  out.unchanged = before == rank.tensors();
  return out;
}
/// Fills the gradients of `step`, then calls attempt_only().
inline Ended attempt(Rank& rank, int64_t step) {
  rank.fill_gradients(step);
  return attempt_only(rank, step);
}

/// Runs `script(rank, comm)` on every rank of the case. Returns the results, indexed by rank.
template <class Script>
auto on_each(const Case& c, Script script, const MakeDevice& make_device = host_device,
             muonrt::ThreadFaults faults = {}) {
  using Result = std::invoke_result_t<Script, Rank&, muonrt::Comm&>;
  static_assert(!std::is_same_v<Result, bool>, "ranks write side by side: no bits");
  if constexpr (std::is_void_v<Result>) {
    on_ranks(
        c.world,
        [&](muonrt::Comm& comm) {
          Rank rank(c, comm, make_device);
          script(rank, comm);
        },
        std::move(faults));
  } else {
    std::vector<Result> out(static_cast<size_t>(c.world));
    on_ranks(
        c.world,
        [&](muonrt::Comm& comm) {
          Rank rank(c, comm, make_device);
          out[static_cast<size_t>(comm.rank())] = script(rank, comm);
        },
        std::move(faults));
    return out;
  }
}

/// Adds `param` to a case: a matrix for Muon, or a vector for AdamW.
inline Param& add(Case& c, std::string name, std::vector<int64_t> shape,
                  std::vector<muonrt::Placement> placements) {
  c.params.push_back(matrix(std::move(name), std::move(shape), std::move(placements)));
  Param& out = c.params.back();
  if (out.shape.size() == 1) out.role = muonrt::Role::kAdamW;
  return out;
}

}  // namespace world
