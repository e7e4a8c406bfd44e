#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport.hpp"
#include "simulation/plan.hpp"

namespace simulation {

/// One rank of a world. It runs the plan on a transport and checks the result of each operation.
class RankRun {
 public:
  /// Called when the rank reaches the step at which the plan injects a network fault.
  using Strike = std::function<void(const Fault&)>;

  RankRun(const Plan& plan, int rank, Strike strike)
      : plan_(plan), rank_(rank), strike_(std::move(strike)) {}

  /// Connects and runs all steps. Returns after the rank has destroyed its communicators.
  void run(const std::function<std::unique_ptr<muonrt::Transport>()>& connect);
  /// Checks that no thread has used the buffers after their operation. Call it at the end of the
  /// world.
  void check_buffers() const;

 private:
  struct Comm {
    std::unique_ptr<muonrt::Transport> transport;
    std::optional<muonrt::Error> first;
  };
  /// The memory of an operation. It is filled with a pattern after the operation returns.
  struct Buffer {
    std::vector<unsigned char> memory;
    std::string what;
    unsigned char pattern = 0;
  };
  struct Lane;

  void run_lane(int lane, bool& leaves);
  bool meet_faults(int lane, int step, std::vector<std::thread>& aborts);
  void run_step(int lane, int step);
  void operate(muonrt::Transport& t, const Step& s, const Fault* fault, std::vector<Buffer>& used);
  void exchange(muonrt::Transport& t, const Step& s, const Fault* fault, std::vector<Buffer>& used);
  void check_error(Comm& comm, const Step& s, const std::string& where, const muonrt::Error& error,
                   int64_t began);
  void keep(std::vector<Buffer>& used);
  Buffer& fresh(std::vector<Buffer>& used, int64_t bytes, const std::string& what);
  void require(bool good, const std::string& problem) const;

  const Plan& plan_;
  const int rank_;
  const Strike strike_;
  std::vector<Comm> comms_;
  std::vector<Buffer> kept_;
};

}  // namespace simulation
