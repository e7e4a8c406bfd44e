/// Declares the class muonrt.Optimizer. state.cpp and checkpoint.cpp define and bind some of its
/// methods. optimizer.cpp and step.cpp define the other methods, which bind_optimizer.cpp binds.
#ifndef MUONRT_PYTHON_OPTIMIZER_HPP
#define MUONRT_PYTHON_OPTIMIZER_HPP

#include "binding.hpp"

namespace binding {

/// The argument of `assign`; see muonrt_assign_info_t.
struct AssignInfo {
  std::string name;
  int64_t index = 0;
  std::vector<int64_t> shape;
  std::vector<int32_t> holders;
  int32_t world = 0;
  std::vector<std::vector<int32_t>> matrix_holders;
};

struct Held;

/// The caller's functions for muonrt/distributed.h, and the data from which the module creates the
/// arrays that it passes to them.
struct CallerFunctions {
  struct Tensor {
    std::string name;
    std::vector<size_t> local, full;  // shapes
    int32_t batch_dims = 0;           // leading dimensions of `full` that form a stack
    std::vector<int32_t> owners;      // one rank, or one rank for each matrix
  };
  nb::object assign, gather, redistribute;  // functions, or None
  muonrt_dtype_t transport_dtype = MUONRT_DTYPE_BF16;
  Place place;
  std::vector<Tensor> tensors;
  std::weak_ptr<Held> held;  // owns the memory of the arrays
  // the first exception in the current call; access it while you hold the GIL
  std::optional<nb::python_error> raised;
};

/// Returns the functions in the options, and sets them in the C options. If no keyword of
/// muonrt_distributed_config_t was passed, returns null. Do not move `options` afterwards, because
/// the C options point into it.
std::unique_ptr<CallerFunctions> caller_functions(Options& options,
                                                  const std::vector<Param*>& params,
                                                  const Place& place);

/// Throws the Python exception for `error`. Its cause is the exception that one of the functions
/// has raised.
[[noreturn]] void raise_with_cause(const muonrt::Error& error, CallerFunctions& functions);

/// Runs a collective call. If it fails after one of the caller's functions has raised an exception,
/// that exception becomes the cause of the error.
/// @param begins  whether to discard exceptions from before this call.
template <class Call>
void with_cause(CallerFunctions* functions, const Call& call, bool begins = true) {
  if (functions == nullptr) return call();
  if (begins) functions->raised.reset();
  try {
    call();
  } catch (const muonrt::Error& error) {
    if (!functions->raised) throw;
    raise_with_cause(error, *functions);
  }
}

/// All objects that must live as long as the C optimizer. Arrays over the optimizer's state share
/// ownership of this object.
struct Held {
  std::shared_ptr<muonrt_comm_t> comm;  // aborted on Ctrl-C
  std::vector<Array> data, masters;     // borrowed by the C optimizer
  std::vector<std::optional<Array>> grads;
  std::vector<Array> scalars;  // arrays of a step that is running or has failed
  std::unique_ptr<CallerFunctions> functions;
  muonrt_optimizer_t* handle = nullptr;
  nb::object grad_owners;  // objects that keep the gradients passed by address alive

  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    const GilReleased release;
    muonrt_optimizer_destroy(handle);
  }
};

/// A block of state on this rank; see muonrt_state_shard_t.
struct StateShard {
  std::string param, kind;
  std::vector<int64_t> shape;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> runs;
  int64_t begin, end;
  std::pair<int64_t, int64_t> write_range;
  nb::object data;
};

/// One learning rate, or one for each group.
using Rates = std::variant<double, std::vector<double>>;

class Optimizer {
 public:
  Optimizer(const std::vector<Param*>& params, const std::vector<Group*>& groups, Comm* comm,
            const nb::kwargs& settings);
  ~Optimizer() { alive<Optimizer>().erase(this); }
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  StepReport step(const Rates& lr, const std::vector<int64_t>& inactive_params,
                  nb::object grad_scale_inv, nb::object found_inf, std::optional<uintptr_t> stream,
                  nb::object qk_logits);
  void step_async(const Rates& lr, const std::vector<int64_t>& inactive_params,
                  nb::object grad_scale_inv, nb::object found_inf, std::optional<uintptr_t> stream,
                  nb::object qk_logits);
  StepReport wait();
  void set_grad(nb::handle param, nb::handle grad);
  void set_grads(const std::vector<nb::object>& grads);
  /// Sets gradients without the checks of set_grads(): the caller must have checked dtypes, shapes
  /// and devices.
  /// @param addresses  0 for a parameter without a gradient.
  /// @param owners     objects that are kept alive while the optimizer uses the gradients.
  void set_grad_addresses(const std::vector<uintptr_t>& addresses, nb::object owners);
  void set_data(nb::handle param, nb::handle data);
  void set_group(int32_t index, const nb::kwargs& settings);
  void reset_masters(const std::optional<std::vector<nb::object>>& params);
  std::vector<int64_t> update_counts();
  void set_update_counts(const std::vector<int64_t>& counts);
  int64_t steps();
  void set_steps(int64_t steps);
  std::vector<std::pair<int32_t, int32_t>> clipped_heads();
  std::vector<std::pair<int32_t, int32_t>> qk_layers();
  nb::object state(nb::handle param, const std::string& kind);
  std::vector<StateShard> state_shards();
  std::tuple<std::string, int64_t> recover(Comm& survivors, const std::string& survivor_policy);
  /// Copies the state of another optimizer. Collective.
  /// @param from  null if this rank has no old optimizer.
  void copy_state_from(Optimizer* from);
  /// Runs a collective call on the C optimizer without the GIL. `call` must not throw.
  void run(const std::function<muonrt_status_t(muonrt_optimizer_t*)>& call);
  int64_t save_reserve(const muonrt_save_options_t& options);
  bool in_use() const { return busy_; }
  std::shared_ptr<muonrt_comm_t> comm() const { return held_ ? held_->comm : nullptr; }
  void close() {
    Busy busy(busy_, "the optimizer");
    held_.reset();
  }

  muonrt_optimizer_t* get() const {
    if (!held_) refuse(MUONRT_ERROR_INVALID_STATE, "the optimizer is closed");
    return held_->handle;
  }
  int64_t find_param(nb::handle param) {
    Busy busy(busy_, "the optimizer");
    return static_cast<int64_t>(index(param));
  }
  std::string text(decltype(muonrt_optimizer_describe_plan) call, bool json) {
    Busy busy(busy_, "the optimizer");
    return muonrt::detail::text([&](char* buffer, int64_t capacity, int64_t* needed) {
      return call(buffer, capacity, needed, get(), json ? MUONRT_FORMAT_JSON : MUONRT_FORMAT_TEXT);
    });
  }
  std::vector<std::string> load_notes() {
    Busy busy(busy_, "the optimizer");
    return muonrt::detail::lines([&](char* buffer, int64_t capacity, int64_t* needed) {
      return muonrt_optimizer_get_load_notes(buffer, capacity, needed, get());
    });
  }
  nb::dict counters() {
    Busy busy(busy_, "the optimizer");
    return binding::counters(get());
  }
  nb::dict memory() {
    Busy busy(busy_, "the optimizer");
    return binding::memory(get());
  }
  nb::dict health() {
    Busy busy(busy_, "the optimizer");
    return binding::health(get(), names);
  }
  /// Returns the caller's functions for the garbage collector, or null if there are none.
  CallerFunctions* functions() const { return held_ ? held_->functions.get() : nullptr; }
  muonrt::Plan plan() {
    Busy busy(busy_, "the optimizer");
    return muonrt::Plan(get());
  }
  std::vector<std::string> names;

 private:
  struct Creation;
  void prepare(Creation& creation, const std::vector<Param*>& params,
               const std::vector<Group*>& groups, const Comm* comm, const nb::kwargs& settings);
  /// Returns the index of a parameter. `param` is its name or its index.
  size_t index(nb::handle param) const;
  Array take_like(const std::string& what, nb::handle object, muonrt_dtype_t dtype,
                  const std::vector<int64_t>& shape, bool writable) const;
  std::optional<Array> take_grad(size_t i, nb::handle grad) const;
  std::vector<muonrt_state_shard_t> list_state_shards() const;
  nb::object over_memory(void* data, muonrt_dtype_t dtype, const std::vector<size_t>& shape) const;
  const float* take_scalar(const char* what, nb::handle object);
  void take_scalars(muonrt_step_args_t& args, nb::handle grad_scale_inv, nb::handle found_inf,
                    nb::handle qk_logits);
  using StepCall = std::function<muonrt_status_t(muonrt_optimizer_t*, const muonrt_step_args_t*)>;
  /// Runs the call with these arguments and keeps their arrays alive. If an argument is invalid,
  /// runs the call without arguments, so that the peers do not wait, and then throws.
  void begin_step(const StepCall& call, const Rates& lr,
                  const std::vector<int64_t>& inactive_params, nb::handle grad_scale_inv,
                  nb::handle found_inf, std::optional<uintptr_t> stream, nb::handle qk_logits);
  StepReport end_step(StepReport report);
  std::vector<std::pair<int32_t, int32_t>> heads_of(
      decltype(&muonrt_optimizer_get_clipped_heads) get_heads);

  std::shared_ptr<Held> held_;
  Place place_;
  std::vector<Group> groups_;
  std::vector<int32_t> group_of_;  // index of each parameter's group
  Rates rates_;                    // learning rates of the last step
  std::vector<muonrt_dtype_t> grad_dtypes_, momentum_dtypes_;
  std::vector<std::vector<int64_t>> grad_shapes_;
  std::vector<bool> owners_hold_moments_;
  std::atomic<bool> busy_{false};
};

/// Binds the functions that access state.
void bind_state(nb::class_<Optimizer>& optimizer);
/// Binds the class Plan, and Optimizer.plan().
void bind_plan(nb::module_& module, nb::class_<Optimizer>& optimizer);
/// Binds the functions that save and load checkpoints.
void bind_checkpoint(nb::class_<Optimizer>& optimizer);

}  // namespace binding

#endif  // MUONRT_PYTHON_OPTIMIZER_HPP
