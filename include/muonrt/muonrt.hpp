/// @file muonrt/muonrt.hpp
/// C++17 classes over the C interface: objects whose destructors destroy the handles, exceptions
/// instead of statuses, and std::vector instead of a pointer and a size. Header-only.
///
/// Each function calls the C function that its comment names, and throws Error if that function
/// returns an error. The rules of the C function for threads and collective calls apply.
#ifndef MUONRT_MUONRT_HPP
#define MUONRT_MUONRT_HPP

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muonrt/checkpoint_reader.hpp"
#include "muonrt/error.hpp"
#include "muonrt/muonrt.h"
#include "muonrt/orthogonalize.hpp"
#include "muonrt/plan.hpp"

#if !MUONRT_VERSION_AT_LEAST(0, 1, 0)
#error "muonrt.hpp needs the C headers of muonrt 0.1.0 or later"
#endif

namespace muonrt {
// The inline namespace prevents symbol collisions with a statically linked libmuonrt.
inline namespace v0 {

namespace detail {
struct Delete {
  void operator()(muonrt_comm_t* p) const noexcept { muonrt_comm_destroy(p); }
  void operator()(muonrt_optimizer_t* p) const noexcept { muonrt_optimizer_destroy(p); }
  void operator()(muonrt_thread_group_t* p) const noexcept { muonrt_thread_group_destroy(p); }
};
}  // namespace detail

/// A communicator; see muonrt/comm.h. Movable; the destructor calls muonrt_comm_destroy().
class Comm {
 public:
  /// Wraps a handle, for example from muonrt_comm_create_mpi(). The destructor destroys the handle.
  explicit Comm(muonrt_comm_t* handle) : handle_(handle) {}
  /// Creates a communicator of one rank; see muonrt_comm_create_self().
  static Comm self() { return Comm(detail::value<muonrt_comm_t*>(muonrt_comm_create_self)); }
  /// Creates the communicator of rank `rank` in a group of threads; see
  /// muonrt_comm_create_thread().
  static Comm thread(muonrt_thread_group_t* group, int32_t rank) {
    return Comm(detail::value<muonrt_comm_t*>(muonrt_comm_create_thread, group, rank));
  }
  /// Creates a communicator of ranks that connect over TCP; see muonrt_comm_create_tcp().
  static Comm tcp(const muonrt_tcp_options_t& options) {
    return Comm(detail::value<muonrt_comm_t*>(muonrt_comm_create_tcp, &options));
  }
  /// Creates a communicator of ranks that find each other in a folder; see
  /// muonrt_comm_create_folder().
  static Comm folder(const muonrt_folder_options_t& options) {
    return Comm(detail::value<muonrt_comm_t*>(muonrt_comm_create_folder, &options));
  }
  /// Creates a communicator for GPU memory over NCCL; see muonrt_comm_create_nccl().
  static Comm nccl(const Comm& host, const muonrt_nccl_options_t& options) {
    return Comm(detail::value<muonrt_comm_t*>(muonrt_comm_create_nccl, host.get(), &options));
  }
  /// Creates a communicator that moves GPU memory through host memory; see
  /// muonrt_comm_create_staged().
  static Comm staged(const Comm& host, int32_t device_index) {
    return Comm(detail::value<muonrt_comm_t*>(muonrt_comm_create_staged, host.get(), device_index));
  }

  /// @return The rank of the caller; see muonrt_comm_get_rank().
  int32_t rank() const { return detail::value<int32_t>(muonrt_comm_get_rank, get()); }
  /// @return The number of ranks; see muonrt_comm_get_size().
  int32_t size() const { return detail::value<int32_t>(muonrt_comm_get_size, get()); }
  /// Sets the timeout of every wait; see muonrt_comm_set_timeout().
  void set_timeout(int64_t milliseconds) { check(muonrt_comm_set_timeout(get(), milliseconds)); }
  /// Waits until every rank has called barrier(); see muonrt_comm_barrier().
  void barrier() { check(muonrt_comm_barrier(get())); }
  /// Gathers `bytes` bytes of every rank into `all`, in rank order; see muonrt_comm_allgather().
  void allgather(void* all, const void* mine, int64_t bytes) {
    check(muonrt_comm_allgather(all, get(), mine, bytes));
  }
  /// Sums values over all ranks, in rank order; see muonrt_comm_allreduce_sum().
  /// @return The sums, bitwise identical on all ranks.
  std::vector<double> allreduce_sum(const std::vector<double>& values) {
    std::vector<double> sums(values.size());
    check(muonrt_comm_allreduce_sum(sums.data(), get(), values.data(),
                                    static_cast<int64_t>(values.size())));
    return sums;
  }
  /// Ends all operations on all ranks. Any thread may call this function; see muonrt_comm_abort().
  void abort(muonrt_status_t status, const std::string& message) {
    check(muonrt_comm_abort(get(), status, message.c_str()));
  }
  /// Sends and receives at most one message per peer; see muonrt_comm_exchange().
  void exchange(const std::vector<muonrt_send_t>& sends,
                const std::vector<muonrt_receive_t>& receives) {
    check(muonrt_comm_exchange(get(), sends.data(), static_cast<int64_t>(sends.size()),
                               receives.data(), static_cast<int64_t>(receives.size())));
  }
  /// @return The handle. It still belongs to this object, so do not destroy it.
  muonrt_comm_t* get() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<muonrt_comm_t, detail::Delete> handle_;
};

/// A group of ranks that are threads of one process; see muonrt/comm.h. Movable.
class ThreadGroup {
 public:
  /// Creates a group of `size` ranks; see muonrt_thread_group_create().
  explicit ThreadGroup(int32_t size) {
    handle_.reset(detail::value<muonrt_thread_group_t*>(muonrt_thread_group_create, size));
  }
  /// @return The communicator of rank `rank`, which may outlive the group. Call this function once
  /// per rank.
  Comm comm(int32_t rank) { return Comm::thread(handle_.get(), rank); }

 private:
  std::unique_ptr<muonrt_thread_group_t, detail::Delete> handle_;
};

/// @return The default options of Comm::tcp().
inline muonrt_tcp_options_t tcp_options() { return detail::filled(muonrt_tcp_options_init_sized); }
/// @return The default options of Comm::folder().
inline muonrt_folder_options_t folder_options() {
  return detail::filled(muonrt_folder_options_init_sized);
}
/// @return The default options of Comm::nccl().
inline muonrt_nccl_options_t nccl_options() {
  return detail::filled(muonrt_nccl_options_init_sized);
}
/// @return A Muon group in which every field has its default.
inline muonrt_group_t muon_group() { return detail::filled(muonrt_group_init_muon_sized); }
/// @return An AdamW group in which every field has its default.
inline muonrt_group_t adamw_group() { return detail::filled(muonrt_group_init_adamw_sized); }
/// @return A parameter in which every field has its default.
inline muonrt_param_t param() { return detail::filled(muonrt_param_init_sized); }
/// @return A part of a parameter, in which every field has its default.
inline muonrt_part_t part() { return detail::filled(muonrt_part_init_sized); }
/// @return The default layout: replicated over all ranks.
inline muonrt_layout_t layout() { return detail::filled(muonrt_layout_init_sized); }
/// @return The default QK-clip settings.
inline muonrt_qk_clip_t qk_clip() { return detail::filled(muonrt_qk_clip_init_sized); }
/// @return An allocator in which no function is set.
inline muonrt_allocator_t allocator() { return detail::filled(muonrt_allocator_init_sized); }
/// @return The default options of Optimizer.
inline muonrt_optimizer_options_t options() {
  return detail::filled(muonrt_optimizer_options_init_sized);
}
/// @return The default tuning options.
inline muonrt_tuning_options_t tuning_options() {
  return detail::filled(muonrt_tuning_options_init_sized);
}
/// @return The default debug options.
inline muonrt_debug_options_t debug_options() {
  return detail::filled(muonrt_debug_options_init_sized);
}
/// @return The default configuration, in which no function is set.
inline muonrt_distributed_config_t distributed_config() {
  return detail::filled(muonrt_distributed_config_init_sized);
}
/// @return The default arguments of Optimizer::step(). You must set `lr`.
inline muonrt_step_args_t step_args() { return detail::filled(muonrt_step_args_init_sized); }

/// The statistics of the last step that collected statistics; see muonrt/health.h.
struct Health {
  /// The statistics of the step.
  muonrt_health_t summary;
  /// One element per matrix, ordered by parameter and, within a parameter, by index.
  std::vector<muonrt_matrix_health_t> matrices;
};

/// An optimizer; see muonrt/optimizer.h. Movable; the destructor calls muonrt_optimizer_destroy().
class Optimizer {
 public:
  /// Creates an optimizer; see muonrt_optimizer_create(). Collective.
  /// @param comm      The communicator; it may be destroyed afterwards.
  /// @param settings  The options, for example from options().
  /// @param groups    The groups. `group` of each parameter is an index in this list.
  /// @param params    The parameters.
  Optimizer(const Comm& comm, const muonrt_optimizer_options_t& settings,
            const std::vector<muonrt_group_t>& groups, const std::vector<muonrt_param_t>& params) {
    muonrt_optimizer_t* handle = nullptr;
    check(muonrt_optimizer_create(&handle, comm.get(), &settings, groups.data(),
                                  static_cast<int32_t>(groups.size()), params.data(),
                                  static_cast<int64_t>(params.size())));
    handle_.reset(handle);
  }

  /// Binds the gradient of parameter `index`; see muonrt_optimizer_set_grad().
  void set_grad(int64_t index, const void* grad) {
    check(muonrt_optimizer_set_grad(get(), index, grad));
  }
  /// Binds the gradients of all parameters; see muonrt_optimizer_set_grads().
  void set_grads(const std::vector<const void*>& grads) {
    check(muonrt_optimizer_set_grads(get(), grads.data(), static_cast<int64_t>(grads.size())));
  }
  /// Binds the memory of parameter `index`; see muonrt_optimizer_set_data().
  void set_data(int64_t index, void* data) { check(muonrt_optimizer_set_data(get(), index, data)); }
  /// Sets all master weights to the values of the parameters; see muonrt_optimizer_reset_masters().
  void reset_masters() { check(muonrt_optimizer_reset_masters(get(), nullptr, 0)); }
  /// Resets the master weights of the parameters whose indices are in `params`, which may be empty.
  void reset_masters(const std::vector<int64_t>& params) {
    if (params.empty()) return;
    check(
        muonrt_optimizer_reset_masters(get(), params.data(), static_cast<int64_t>(params.size())));
  }
  /// Changes the settings of group `index`; see muonrt_optimizer_set_group().
  void set_group(int32_t index, const muonrt_group_t& group) {
    check(muonrt_optimizer_set_group(get(), index, &group));
  }

  /// Runs one step with these arguments; all other arguments have their defaults. See
  /// muonrt_optimizer_step(). Collective.
  /// @param lr               The learning rate.
  /// @param inactive_params  Indices of the parameters that do not take part in this step.
  /// @return The report; `skipped` is 1 if the step was skipped.
  muonrt_step_report_t step(double lr, const std::vector<int64_t>& inactive_params = {}) {
    muonrt_step_args_t args = step_args();
    args.lr = lr;
    args.inactive_params = inactive_params.data();
    args.n_inactive_params = static_cast<int64_t>(inactive_params.size());
    return step(args);
  }
  /// Runs one step; see muonrt_optimizer_step(). Collective.
  /// @return The report; `skipped` is 1 if the step was skipped.
  muonrt_step_report_t step(const muonrt_step_args_t& args) {
    auto report = detail::filled(muonrt_step_report_init_sized);
    check(muonrt_optimizer_step(&report, get(), &args));
    return report;
  }
  /// Enqueues one step; see muonrt_optimizer_step_async(). Collective.
  void step_async(const muonrt_step_args_t& args) {
    check(muonrt_optimizer_step_async(get(), &args));
  }
  /// Completes the step in flight; see muonrt_optimizer_wait(). Collective.
  /// @return The report; `skipped` is 1 if the step was skipped.
  muonrt_step_report_t wait() {
    auto report = detail::filled(muonrt_step_report_init_sized);
    check(muonrt_optimizer_wait(&report, get()));
    return report;
  }

  /// Brings the surviving ranks to the same state; see muonrt_optimizer_recover(). Collective.
  muonrt_recovery_t recover(const Comm& survivors,
                            enum muonrt_survivor_policy policy = MUONRT_SURVIVORS_MAJORITY) {
    auto recovery = detail::filled(muonrt_recovery_init_sized);
    recovery.survivor_policy = policy;
    check(muonrt_optimizer_recover(get(), survivors.get(), &recovery));
    return recovery;
  }
  /// Copies all parameters and state of `from`; see muonrt_optimizer_copy_state(). Collective.
  /// @param from  The old optimizer; NULL on ranks that have none.
  void copy_state_from(Optimizer* from) {
    check(muonrt_optimizer_copy_state(get(), from ? from->get() : nullptr));
  }

  /// @return The index of the parameter with this name; see muonrt_optimizer_find_param().
  int64_t find_param(const std::string& name) const {
    return detail::value<int64_t>(muonrt_optimizer_find_param, get(), name.c_str());
  }
  /// @return All state of this rank; see muonrt_optimizer_get_state_shards().
  std::vector<muonrt_state_shard_t> state_shards() {
    int64_t count = 0;
    check(muonrt_optimizer_get_state_shards(nullptr, 0, &count, get()));
    std::vector<muonrt_state_shard_t> out(static_cast<size_t>(count),
                                          detail::filled(muonrt_state_shard_init_sized));
    check(muonrt_optimizer_get_state_shards(out.data(), count, &count, get()));
    return out;
  }
  /// Saves a checkpoint; see muonrt_optimizer_save(). Collective.
  void save(const std::string& folder, const muonrt_save_options_t* options = nullptr) {
    check(muonrt_optimizer_save(get(), folder.c_str(), options));
  }
  /// Reserves host memory for save_begin(); see muonrt_optimizer_save_reserve().
  /// @return The number of bytes that this rank writes.
  int64_t save_reserve(const muonrt_save_options_t* options = nullptr) {
    int64_t bytes = 0;
    check(muonrt_optimizer_save_reserve(&bytes, get(), options));
    return bytes;
  }
  /// Starts a save in the background; see muonrt_optimizer_save_begin(). Collective.
  void save_begin(const std::string& folder, const muonrt_save_options_t* options = nullptr) {
    check(muonrt_optimizer_save_begin(get(), folder.c_str(), options));
  }
  /// Finishes the save that save_begin() started; see muonrt_optimizer_save_wait(). Collective.
  void save_wait() { check(muonrt_optimizer_save_wait(get())); }
  /// Loads a checkpoint; see muonrt_optimizer_load(). Collective.
  void load(const std::string& folder, const muonrt_load_options_t* options = nullptr) {
    check(muonrt_optimizer_load(get(), folder.c_str(), options));
  }
  /// @return The notes of the last load(); see muonrt_optimizer_get_load_notes().
  std::string load_notes() const {
    return detail::text([&](char* buffer, int64_t capacity, int64_t* needed) {
      return muonrt_optimizer_get_load_notes(buffer, capacity, needed, get());
    });
  }
  /// @return The heads that QK-clip clipped in the last committed step, as pairs of layer and head
  /// in ascending order; see muonrt_optimizer_get_clipped_heads().
  std::vector<std::pair<int32_t, int32_t>> clipped_heads() const {
    return pairs(muonrt_optimizer_get_clipped_heads);
  }
  /// @return The layers whose logits a step reads, as pairs of layer and number of query heads, in
  /// the order of `qk_logits`; see muonrt_optimizer_get_qk_layers().
  std::vector<std::pair<int32_t, int32_t>> qk_layers() const {
    return pairs(muonrt_optimizer_get_qk_layers);
  }
  /// @return The statistics of the last step that collected any; see muonrt_optimizer_get_health().
  Health health() const {
    Health out{detail::filled(muonrt_health_init_sized), {}};
    check(muonrt_optimizer_get_health(&out.summary, nullptr, 0, get()));
    out.matrices.resize(static_cast<size_t>(out.summary.matrices),
                        detail::filled(muonrt_matrix_health_init_sized));
    check(muonrt_optimizer_get_health(&out.summary, out.matrices.data(), out.summary.matrices,
                                      get()));
    return out;
  }
  /// @return The number of committed steps; see muonrt_optimizer_get_step().
  int64_t steps() const { return detail::value<int64_t>(muonrt_optimizer_get_step, get()); }
  /// Sets the number of committed steps; see muonrt_optimizer_set_step().
  void set_step(int64_t step) { check(muonrt_optimizer_set_step(get(), step)); }
  /// @return The update count of parameter `index`; see muonrt_optimizer_get_update_count().
  int64_t update_count(int64_t index) const {
    return detail::value<int64_t>(muonrt_optimizer_get_update_count, get(), index);
  }
  /// Sets the update count of parameter `index`; see muonrt_optimizer_set_update_count().
  void set_update_count(int64_t index, int64_t count) {
    check(muonrt_optimizer_set_update_count(get(), index, count));
  }
  /// @return The plan, as text or JSON; see muonrt_optimizer_describe_plan().
  std::string describe_plan(enum muonrt_format format = MUONRT_FORMAT_TEXT) const {
    return detail::text([&](char* buffer, int64_t capacity, int64_t* needed) {
      return muonrt_optimizer_describe_plan(buffer, capacity, needed, get(), format);
    });
  }
  /// @return The trace of the last step, as text or JSON; see muonrt_optimizer_get_trace().
  std::string trace(enum muonrt_format format = MUONRT_FORMAT_TEXT) const {
    return detail::text([&](char* buffer, int64_t capacity, int64_t* needed) {
      return muonrt_optimizer_get_trace(buffer, capacity, needed, get(), format);
    });
  }
  /// @return The counters of this rank; see muonrt_optimizer_get_counters().
  muonrt_counters_t counters() const {
    auto out = detail::filled(muonrt_counters_init_sized);
    check(muonrt_optimizer_get_counters(&out, get()));
    return out;
  }
  /// @return The memory of this rank; see muonrt_optimizer_get_memory().
  muonrt_memory_t memory() const {
    auto out = detail::filled(muonrt_memory_init_sized);
    check(muonrt_optimizer_get_memory(&out, get()));
    return out;
  }
  /// @return The handle. It still belongs to this object, so do not destroy it.
  muonrt_optimizer_t* get() const noexcept { return handle_.get(); }

 private:
  template <class Get>
  std::vector<std::pair<int32_t, int32_t>> pairs(Get get_arrays) const {
    int64_t count = 0;
    check(get_arrays(nullptr, nullptr, 0, &count, get()));
    std::vector<int32_t> first(static_cast<size_t>(count)), second(first.size());
    check(get_arrays(first.data(), second.data(), count, &count, get()));
    std::vector<std::pair<int32_t, int32_t>> out;
    for (size_t i = 0; i < first.size(); ++i) out.emplace_back(first[i], second[i]);
    return out;
  }

  std::unique_ptr<muonrt_optimizer_t, detail::Delete> handle_;
};

/// @return The versions and features of the loaded library, as JSON; see muonrt_get_build_info().
inline std::string build_info() { return detail::text(muonrt_get_build_info); }

}  // namespace v0
}  // namespace muonrt

#endif  // MUONRT_MUONRT_HPP
