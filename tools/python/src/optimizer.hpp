/// The class muonrt.Optimizer, whose methods are in three files.
#ifndef MUONRT_PYTHON_OPTIMIZER_HPP
#define MUONRT_PYTHON_OPTIMIZER_HPP

#include "binding.hpp"

namespace binding {

/// Everything that lives as long as the C optimizer does: views of state share it.
struct Held {
  std::shared_ptr<muonrt_comm_t> comm;  // aborted on Ctrl-C
  std::vector<Array> data, masters;     // borrowed by the C optimizer
  std::vector<std::optional<Array>> grads;
  std::vector<Array> scalars;  // of a step that runs, or did not end
  muonrt_optimizer_t* handle = nullptr;

  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    nb::gil_scoped_release release;
    muonrt_optimizer_destroy(handle);
  }
};

/// A piece of state that lies here; see muonrt/state.h.
struct StateExtent {
  std::string param, kind;
  std::vector<int64_t> shape;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> runs;
  int64_t begin, end;
  std::pair<int64_t, int64_t> written;
  nb::object data;
};

class Optimizer {
 public:
  Optimizer(const std::vector<Param*>& params, const std::vector<Group*>& groups, Comm* comm,
            const nb::kwargs& settings);
  ~Optimizer() { alive<Optimizer>().erase(this); }
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  Report step(const std::variant<double, std::vector<double>>& lr,
              const std::vector<int64_t>& inactive_params, nb::object grad_scale_inv,
              nb::object found_inf, std::optional<uintptr_t> stream, nb::object qk_logits);
  void set_grad(nb::handle param, nb::handle grad) {
    Busy busy(busy_, "the optimizer");
    const size_t i = index(param);
    std::optional<Array> array = take_grad(i, grad);
    check(muonrt_optimizer_set_grad(get(), static_cast<int64_t>(i), array ? array->data : nullptr));
    held_->grads[i] = std::move(array);
  }
  void set_grads(const std::vector<nb::object>& grads);
  void set_data(nb::handle param, nb::handle data);
  void set_group(int32_t index, const nb::kwargs& settings);
  void take_params(const std::optional<std::vector<nb::object>>& params);
  std::vector<int64_t> updates() const;
  void set_updates(const std::vector<int64_t>& updates);
  nb::object state(nb::handle param, const std::string& kind);
  std::vector<StateExtent> state_extents();
  std::tuple<std::string, int64_t> recover(Comm& survivors);
  /// Makes a collective call of the C optimizer, without the GIL; `call` throws nothing.
  void run(const std::function<muonrt_status_t(muonrt_optimizer_t*)>& call);
  int64_t save_reserve(const muonrt_save_options_t& options);
  bool in_use() const { return busy_; }
  void close() {
    Busy busy(busy_, "the optimizer");
    held_.reset();
  }

  muonrt_optimizer_t* get() const {
    if (!held_) refuse(MUONRT_ERROR_INVALID_STATE, "the optimizer is closed");
    return held_->handle;
  }
  size_t index(nb::handle param) const;
  std::string text(decltype(muonrt_optimizer_describe_plan) call, bool json) {
    Busy busy(busy_, "the optimizer");
    return muonrt::detail::text([&](char* buffer, int64_t capacity, int64_t* needed) {
      return call(get(), json ? MUONRT_FORMAT_JSON : MUONRT_FORMAT_TEXT, buffer, capacity, needed);
    });
  }
  std::vector<std::string> names;

 private:
  Array take_like(const std::string& what, nb::handle object, muonrt_dtype_t dtype,
                  const std::vector<int64_t>& shape, bool writable) const;
  std::optional<Array> take_grad(size_t i, nb::handle grad) const;
  nb::object over_memory(void* data, muonrt_dtype_t dtype, const std::vector<size_t>& shape) const;
  const float* take_scalar(const char* what, nb::handle object);
  void take_scalars(muonrt_step_args_t& args, nb::handle grad_scale_inv, nb::handle found_inf,
                    nb::handle qk_logits);

  std::shared_ptr<Held> held_;
  Place place_;
  std::vector<Group> groups_;
  std::vector<muonrt_dtype_t> grad_dtypes_;
  std::vector<std::vector<int64_t>> grad_shapes_;
  std::atomic<bool> busy_{false};
};

/// Adds the views of state to the class.
void bind_state(nb::class_<Optimizer>& optimizer);
/// Adds what saves and loads to the class.
void bind_checkpoint(nb::class_<Optimizer>& optimizer);

}  // namespace binding

#endif  // MUONRT_PYTHON_OPTIMIZER_HPP
