#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "comm/transport.hpp"
#include "cuda/machine.hpp"
#include "support/thread_ranks.hpp"
#include "support/world.hpp"

// Runs whole cases on this program's CUDA device. Each rank is a thread with its own device object.
namespace cuda_test {

/// Creates a rank's communicator over its transport of the thread group.
using MakeComm = std::function<std::unique_ptr<muonrt::Comm>(std::unique_ptr<muonrt::Transport>)>;

/// Copies between the host's shards and a rank's GPU memory.
class DeviceMirror final : public world::Mirror {
 public:
  explicit DeviceMirror(Machine& machine) : machine_(machine) {}
  void* make(int64_t bytes) override {
    memory_.emplace_back(*machine_.device, bytes);
    return memory_.back().data();
  }
  void put(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes, true); }
  void get(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes, false); }

 private:
  void copy(void* to, const void* from, int64_t bytes, bool in) {
    if (bytes == 0) return;
    const auto staging = muonrt::Buffer::shared(*machine_.device, bytes);
    const auto size = static_cast<size_t>(bytes);
    if (in) std::memcpy(staging.data(), from, size);
    machine_.ops().copy(machine_.on(), in ? to : staging.data(), in ? staging.data() : from, bytes);
    machine_.finish();
    if (!in) std::memcpy(to, staging.data(), size);
  }
  Machine& machine_;
  std::vector<muonrt::Buffer> memory_;
};

inline std::unique_ptr<muonrt::Device> world_device(const muonrt::OptimizerSettings& = {}) {
  return make_device();
}
inline int first_device(int) { return 0; }

/// Runs `body` on every rank of a case and returns the assembled tensors. Throws the error of the
/// first rank with an error, or std::runtime_error if replicas differ.
/// @param device_of  returns the index of a rank's device. The rank's communicator uses this
///     device, too.
inline world::Tensors on_world(const world::Case& of, const MakeComm& make_comm,
                               const std::function<void(world::Rank&)>& body,
                               const std::function<int(int)>& device_of = first_device) {
  world::Tensors out;
  std::vector<std::vector<bool>> seen;
  std::mutex mutex;
  bool equal = true;
  muonrt::ThreadGroup group(of.world);
  const auto failed = transport_test::on_ranks(of.world, [&](int number) {
    auto transport = group.transport(number);
    transport->set_timeout_ms(60000);
    const auto comm = make_comm(std::move(transport));
    const auto make = [&](const muonrt::OptimizerSettings& settings) {
      const int index = device_of(number);
      return settings.graphs ? muonrt::make_cuda_device(index, {.graphs = true})
                             : make_device(false, index);
    };
    Machine machine(make({}));
    DeviceMirror mirror(machine);
    world::Rank rank(of, *comm, make, &mirror);
    body(rank);
    const std::lock_guard lock(mutex);
    equal = rank.add_to(out, seen) && equal;
  });
  for (const auto& e : failed) {
    if (e) throw *e;
  }
  if (!equal) throw std::runtime_error("replicas differ");
  return out;
}

/// Runs steps [first, end) on one rank. Throws std::runtime_error if a step is not complete.
inline void run_steps(world::Rank& rank, int64_t first, int64_t end) {
  for (int64_t step = first; step < end; ++step) {
    muonrt::StepReport report;
    if (rank.step(step, report) != muonrt::Status::kOk || report.orthogonalized != report.planned)
      throw std::runtime_error("a step was incomplete");
  }
}

/// Runs all steps of a case, like on_world().
inline world::Tensors run_world(const world::Case& of, const MakeComm& make_comm,
                                const std::function<int(int)>& device_of = first_device) {
  return on_world(
      of, make_comm, [&](world::Rank& rank) { run_steps(rank, 0, of.steps); }, device_of);
}

}  // namespace cuda_test
