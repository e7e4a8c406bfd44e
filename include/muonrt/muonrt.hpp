/// muonrt/muonrt.hpp - a C++17 face over the C ABI: owning handles, errors as exceptions, vectors
/// in place of pointer and count. Header-only; a program links libmuonrt alone.
#ifndef MUONRT_MUONRT_HPP
#define MUONRT_MUONRT_HPP

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "muonrt/muonrt.h"

namespace muonrt {
// Versioned in the symbols, so that it can be linked beside a static libmuonrt.
inline namespace v0 {

/// What a failed call throws: its status, and the message of muonrt_get_last_error.
class Error : public std::runtime_error {
 public:
  explicit Error(muonrt_status_t status)
      : std::runtime_error(std::string(muonrt_status_get_name(status)) + ": " +
                           muonrt_get_last_error()),
        status_(status) {}
  muonrt_status_t status() const noexcept { return status_; }

 private:
  muonrt_status_t status_;
};

/// Throws unless the call succeeded. MUONRT_SKIPPED is a success: look at the report.
inline muonrt_status_t check(muonrt_status_t status) {
  if (status != MUONRT_OK && status != MUONRT_SKIPPED) throw Error(status);
  return status;
}

namespace detail {
struct Delete {
  void operator()(muonrt_comm_t* p) const noexcept { muonrt_comm_destroy(p); }
  void operator()(muonrt_optimizer_t* p) const noexcept { muonrt_optimizer_destroy(p); }
  void operator()(muonrt_thread_group_t* p) const noexcept { muonrt_thread_group_destroy(p); }
};

template <class Call>
std::string text(Call call) {
  int64_t needed = 0;
  check(call(nullptr, 0, &needed));
  std::string out(static_cast<std::size_t>(needed), '\0');
  check(call(&out[0], needed + 1, &needed));
  return out;
}

/// A struct with every default.
template <class T>
T filled(void (*init)(T*, uint32_t)) {
  T out;
  init(&out, sizeof out);
  return out;
}
}  // namespace detail

/// A communicator; see muonrt/comm.h.
class Comm {
 public:
  /// Takes over a handle, for instance from muonrt_comm_create_mpi.
  explicit Comm(muonrt_comm_t* handle) : handle_(handle) {}
  static Comm self() {
    muonrt_comm_t* handle = nullptr;
    check(muonrt_comm_create_self(&handle));
    return Comm(handle);
  }
  static Comm thread(muonrt_thread_group_t* group, int32_t rank) {
    muonrt_comm_t* handle = nullptr;
    check(muonrt_comm_create_thread(&handle, group, rank));
    return Comm(handle);
  }
  static Comm tcp(const muonrt_tcp_options_t& meeting) {
    muonrt_comm_t* handle = nullptr;
    check(muonrt_comm_create_tcp(&handle, &meeting));
    return Comm(handle);
  }
  static Comm folder(const muonrt_folder_options_t& meeting) {
    muonrt_comm_t* handle = nullptr;
    check(muonrt_comm_create_folder(&handle, &meeting));
    return Comm(handle);
  }

  /// For optimizers on a GPU; see muonrt/nccl.h.
  static Comm nccl(const Comm& host, const muonrt_nccl_options_t& settings) {
    muonrt_comm_t* handle = nullptr;
    check(muonrt_comm_create_nccl(&handle, host.get(), &settings));
    return Comm(handle);
  }
  static Comm staged(const Comm& host, int32_t device_index) {
    muonrt_comm_t* handle = nullptr;
    check(muonrt_comm_create_staged(&handle, host.get(), device_index));
    return Comm(handle);
  }

  int32_t rank() const {
    int32_t out = 0;
    check(muonrt_comm_get_rank(&out, handle_.get()));
    return out;
  }
  int32_t size() const {
    int32_t out = 0;
    check(muonrt_comm_get_size(&out, handle_.get()));
    return out;
  }
  void set_timeout(int64_t milliseconds) { check(muonrt_comm_set_timeout(get(), milliseconds)); }
  void barrier() { check(muonrt_comm_barrier(get())); }
  void allgather(const void* mine, void* all, int64_t bytes) {
    check(muonrt_comm_allgather(get(), mine, all, bytes));
  }
  /// From any thread.
  void abort(muonrt_status_t status, const std::string& message) {
    check(muonrt_comm_abort(get(), status, message.c_str()));
  }
  void exchange(const std::vector<muonrt_message_t>& sends,
                const std::vector<muonrt_message_t>& receives) {
    check(muonrt_comm_exchange(get(), sends.data(), static_cast<int64_t>(sends.size()),
                               receives.data(), static_cast<int64_t>(receives.size())));
  }
  muonrt_comm_t* get() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<muonrt_comm_t, detail::Delete> handle_;
};

/// The meeting place of ranks that are threads.
class ThreadGroup {
 public:
  explicit ThreadGroup(int32_t size) {
    muonrt_thread_group_t* handle = nullptr;
    check(muonrt_thread_group_create(&handle, size));
    handle_.reset(handle);
  }
  Comm comm(int32_t rank) { return Comm::thread(handle_.get(), rank); }

 private:
  std::unique_ptr<muonrt_thread_group_t, detail::Delete> handle_;
};

inline muonrt_tcp_options_t tcp_options() { return detail::filled(muonrt_tcp_options_init_sized); }
inline muonrt_folder_options_t folder_options() {
  return detail::filled(muonrt_folder_options_init_sized);
}
inline muonrt_nccl_options_t nccl_options() {
  return detail::filled(muonrt_nccl_options_init_sized);
}
inline muonrt_group_t muon_group() {
  muonrt_group_t group;
  muonrt_group_init(&group, MUONRT_ROLE_MUON);
  return group;
}
inline muonrt_group_t adamw_group() {
  muonrt_group_t group;
  muonrt_group_init(&group, MUONRT_ROLE_ADAMW);
  return group;
}
inline muonrt_param_t param() { return detail::filled(muonrt_param_init_sized); }
inline muonrt_part_t part() { return detail::filled(muonrt_part_init_sized); }
inline muonrt_layout_t layout() { return detail::filled(muonrt_layout_init_sized); }
inline muonrt_qk_clip_t qk_clip() { return detail::filled(muonrt_qk_clip_init_sized); }
inline muonrt_allocator_t allocator() { return detail::filled(muonrt_allocator_init_sized); }
inline muonrt_optimizer_options_t options() {
  return detail::filled(muonrt_optimizer_options_init_sized);
}
inline muonrt_distributed_config_t distributed_config() {
  return detail::filled(muonrt_distributed_config_init_sized);
}
inline muonrt_step_args_t step_args() { return detail::filled(muonrt_step_args_init_sized); }

/// What the last step that measured found; see muonrt/health.h.
struct Health {
  muonrt_health_t summary;
  std::vector<muonrt_matrix_health_t> matrices;
};

/// An optimizer; see muonrt/optimizer.h.
class Optimizer {
 public:
  Optimizer(const Comm& comm, const muonrt_optimizer_options_t& settings,
            const std::vector<muonrt_group_t>& groups, const std::vector<muonrt_param_t>& params) {
    muonrt_optimizer_t* handle = nullptr;
    check(muonrt_optimizer_create(&handle, comm.get(), &settings, groups.data(),
                                  static_cast<int32_t>(groups.size()), params.data(),
                                  static_cast<int64_t>(params.size())));
    handle_.reset(handle);
  }

  void set_grad(int64_t index, const void* grad) {
    check(muonrt_optimizer_set_grad(get(), index, grad));
  }
  void set_grads(const std::vector<const void*>& grads) {
    check(muonrt_optimizer_set_grads(get(), grads.data(), static_cast<int64_t>(grads.size())));
  }
  void set_data(int64_t index, void* data) { check(muonrt_optimizer_set_data(get(), index, data)); }
  /// Takes new weights, of all parameters or of some: master weights follow what was written.
  void take_params() { check(muonrt_optimizer_reset_masters(get(), nullptr, 0)); }
  void take_params(const std::vector<int64_t>& params) {
    if (params.empty()) return;
    check(
        muonrt_optimizer_reset_masters(get(), params.data(), static_cast<int64_t>(params.size())));
  }
  void set_group(int32_t index, const muonrt_group_t& group) {
    check(muonrt_optimizer_set_group(get(), index, &group));
  }

  /// @return  what was done; `skipped` where a gradient was not finite.
  muonrt_step_report_t step(double lr, const std::vector<int64_t>& inactive_params = {}) {
    muonrt_step_args_t args = step_args();
    args.lr = lr;
    args.inactive_params = inactive_params.data();
    args.n_inactive_params = static_cast<int64_t>(inactive_params.size());
    return step(args);
  }
  muonrt_step_report_t step(const muonrt_step_args_t& args) {
    auto report = detail::filled(muonrt_step_report_init_sized);
    check(muonrt_optimizer_step(get(), &args, &report));
    return report;
  }

  /// Of a step that failed, with the ranks that are left; see muonrt/recover.h.
  muonrt_recovery_t recover(const Comm& survivors,
                            muonrt_survivor_policy_t policy = MUONRT_SURVIVORS_MAJORITY) {
    auto recovery = detail::filled(muonrt_recovery_init_sized);
    recovery.survivor_policy = policy;
    check(muonrt_optimizer_recover(get(), survivors.get(), &recovery));
    return recovery;
  }

  int64_t find(const std::string& name) const {
    int64_t index = 0;
    check(muonrt_optimizer_find_param(get(), name.c_str(), &index));
    return index;
  }
  /// View of MUONRT_STATE_...; borrowed.
  muonrt_state_view_t state(int64_t index, int32_t kind) {
    auto view = detail::filled(muonrt_state_view_init_sized);
    check(muonrt_optimizer_state(get(), index, kind, &view));
    return view;
  }
  /// All state of this rank; valid until the next call.
  std::vector<muonrt_state_shard_t> state_extents() {
    int64_t count = 0;
    check(muonrt_optimizer_get_state_shards(get(), nullptr, 0, &count));
    std::vector<muonrt_state_shard_t> out(static_cast<size_t>(count),
                                          detail::filled(muonrt_state_shard_init_sized));
    check(muonrt_optimizer_get_state_shards(get(), out.data(), count, &count));
    return out;
  }
  /// A checkpoint, and going on from one; see muonrt/state.h.
  void save(const std::string& folder, const muonrt_save_options_t* options = nullptr) {
    check(muonrt_optimizer_save(get(), folder.c_str(), options));
  }
  /// Host memory for save_begin. @return  its bytes.
  int64_t save_reserve(const muonrt_save_options_t* options = nullptr) {
    int64_t bytes = 0;
    check(muonrt_optimizer_save_reserve(get(), options, &bytes));
    return bytes;
  }
  void save_begin(const std::string& folder, const muonrt_save_options_t* options = nullptr) {
    check(muonrt_optimizer_save_begin(get(), folder.c_str(), options));
  }
  void save_wait() { check(muonrt_optimizer_save_wait(get())); }
  void load(const std::string& folder, const muonrt_load_options_t* options = nullptr) {
    check(muonrt_optimizer_load(get(), folder.c_str(), options));
  }
  std::string load_notes() const {
    return detail::text([&](char* buffer, int64_t capacity, int64_t* needed) {
      return muonrt_optimizer_get_load_notes(get(), buffer, capacity, needed);
    });
  }
  /// (layer, head) that QK-clip acted on in the last committed step, ascending.
  std::vector<std::pair<int32_t, int32_t>> clipped_heads() const {
    int64_t count = 0;
    check(muonrt_optimizer_get_clipped_heads(get(), nullptr, nullptr, 0, &count));
    std::vector<int32_t> layers(static_cast<size_t>(count)), heads(static_cast<size_t>(count));
    check(muonrt_optimizer_get_clipped_heads(get(), layers.data(), heads.data(), count, &count));
    std::vector<std::pair<int32_t, int32_t>> out;
    for (size_t i = 0; i < layers.size(); ++i) out.emplace_back(layers[i], heads[i]);
    return out;
  }
  Health health() const {
    Health out{detail::filled(muonrt_health_init_sized), {}};
    check(muonrt_optimizer_get_health(get(), &out.summary, nullptr, 0));
    out.matrices.resize(static_cast<size_t>(out.summary.matrices),
                        detail::filled(muonrt_matrix_health_init_sized));
    check(muonrt_optimizer_get_health(get(), &out.summary, out.matrices.data(),
                                      out.summary.matrices));
    return out;
  }
  int64_t steps() const {
    int64_t out = 0;
    check(muonrt_optimizer_get_step(get(), &out));
    return out;
  }
  void set_step(int64_t step) { check(muonrt_optimizer_set_step(get(), step)); }
  /// Counts the updates that a parameter has had; set them after set_step.
  int64_t updates(int64_t index) const {
    int64_t out = 0;
    check(muonrt_optimizer_get_update_count(get(), index, &out));
    return out;
  }
  void set_updates(int64_t index, int64_t updates) {
    check(muonrt_optimizer_set_update_count(get(), index, updates));
  }
  std::string describe(int32_t format = MUONRT_FORMAT_TEXT) const {
    return detail::text([&](char* buffer, int64_t capacity, int64_t* needed) {
      return muonrt_optimizer_describe_plan(get(), format, buffer, capacity, needed);
    });
  }
  std::string trace(int32_t format = MUONRT_FORMAT_TEXT) const {
    return detail::text([&](char* buffer, int64_t capacity, int64_t* needed) {
      return muonrt_optimizer_get_trace(get(), format, buffer, capacity, needed);
    });
  }
  muonrt_counters_t counters() const {
    auto out = detail::filled(muonrt_counters_init_sized);
    check(muonrt_optimizer_get_counters(get(), &out));
    return out;
  }
  muonrt_optimizer_t* get() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<muonrt_optimizer_t, detail::Delete> handle_;
};

/// Versions and abilities of the library that runs, as JSON.
inline std::string build_info() { return detail::text(muonrt_get_build_info); }

}  // namespace v0
}  // namespace muonrt

#endif  // MUONRT_MUONRT_HPP
