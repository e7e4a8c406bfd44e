#include <algorithm>

#include "optimizer.hpp"

namespace binding {

/// Returns an array over memory of the optimizer. The array keeps the memory alive.
nb::object Optimizer::over_memory(void* data, muonrt_dtype_t dtype,
                                  const std::vector<size_t>& shape) const {
  static float nothing = 0.0f;
  nb::capsule owner(new std::shared_ptr<Held>(held_), [](void* pointer) noexcept {
    delete static_cast<std::shared_ptr<Held>*>(pointer);
  });
  const nb::dlpack::dtype type =
      dtype == MUONRT_DTYPE_F32 ? nb::dtype<float>() : nb::dtype<uint16_t>();
  if (place_.on_cuda())
    return nb::cast(nb::ndarray<nb::device::cuda>(data, shape.size(), shape.data(), owner, nullptr,
                                                  type, nb::device::cuda::value, place_.index));
  return nb::cast(nb::ndarray<nb::numpy>(data == nullptr ? &nothing : data, shape.size(),
                                         shape.data(), owner, nullptr, type));
}

std::vector<muonrt_state_shard_t> Optimizer::list_state_shards() const {
  int64_t count = 0;
  check(muonrt_optimizer_get_state_shards(nullptr, 0, &count, get()));
  std::vector<muonrt_state_shard_t> shards(static_cast<size_t>(count),
                                           muonrt::detail::filled(muonrt_state_shard_init_sized));
  check(muonrt_optimizer_get_state_shards(shards.data(), count, &count, get()));
  return shards;
}

nb::object Optimizer::state(nb::handle param, const std::string& kind) {
  Busy busy(busy_, "the optimizer");
  const size_t i = index(param);
  const muonrt_state_kind_t c_kind = state_of(kind);
  const bool is_moment = c_kind == MUONRT_STATE_MOMENTUM || c_kind == MUONRT_STATE_VARIANCE;
  if (c_kind == MUONRT_STATE_NORMUON || (is_moment && owners_hold_moments_[i]))
    refuse(MUONRT_ERROR_NOT_SUPPORTED,
           cat("param '", names[i], "': owners hold its ", kind,
               ", so this rank's shard has no such array; use state_shards()"));
  const std::vector<int64_t>& local = held_->data[i].shape;
  const std::vector<size_t> shape(local.begin(), local.end());
  if (held_->data[i].data == nullptr) {
    const bool f32 = c_kind != MUONRT_STATE_REMAINDER &&
                     (c_kind != MUONRT_STATE_MOMENTUM || momentum_dtypes_[i] == MUONRT_DTYPE_F32);
    return over_memory(nullptr, f32 ? MUONRT_DTYPE_F32 : MUONRT_DTYPE_BF16, shape);
  }
  // For each parameter and kind of state, the list has at most one entry.
  const std::vector<muonrt_state_shard_t> shards = list_state_shards();
  const auto found = std::find_if(shards.begin(), shards.end(), [&](const auto& shard) {
    return shard.param == static_cast<int64_t>(i) && shard.kind == c_kind;
  });
  if (found == shards.end())
    refuse(kInvalidArg, cat("param '", names[i], "' has no ", kind,
                            "; state_shards() lists the state of this rank"));
  return over_memory(found->data, found->dtype, shape);
}

std::vector<StateShard> Optimizer::state_shards() {
  Busy busy(busy_, "the optimizer");
  std::vector<StateShard> out;
  for (const muonrt_state_shard_t& c : list_state_shards()) {
    StateShard& shard = out.emplace_back();
    shard.param = names[static_cast<size_t>(c.param)];
    shard.kind = state_word(c.kind);
    shard.shape.assign(c.shape, c.shape + c.ndim);
    const muonrt_run_t* run = c.runs;
    for (int32_t dim = 0; dim < c.ndim; ++dim) {
      auto& list = shard.runs.emplace_back();
      for (int64_t i = 0; i < c.n_runs[dim]; ++i, ++run) list.emplace_back(run->begin, run->end);
    }
    shard.begin = c.begin;
    shard.end = c.end;
    shard.write_range = {c.write_begin, c.write_end};
    shard.data = over_memory(c.data, c.dtype, {static_cast<size_t>(c.end - c.begin)});
  }
  return out;
}

void bind_state(nb::class_<Optimizer>& optimizer) {
  optimizer
      .def("state", &Optimizer::state, nb::arg("param"), nb::arg("kind"),
           nb::sig("def state(self, param: str | int, kind: str) -> typing.Any"),
           "Returns one kind of state of a parameter, as an array that uses muonrt's memory.\n\n"
           "The array holds the state of this rank's shard and has the shape of the shard. On\n"
           "the host it is a NumPy array. On CUDA it is a DLPack capsule, which you can pass to\n"
           "a framework's from_dlpack(). Write to the array only between steps.\n\n"
           ":param param: name or index of the parameter.\n"
           ":param kind: \"momentum\", \"variance\", \"master\" or \"remainder\". The array is\n"
           "    float32, except that bfloat16 momentum and remainders are uint16 bits.\n\n"
           "If owners store the state instead (see muonrt_state_shard_t), the method raises\n"
           "NotSupportedError. They store \"normuon\", and the moments of parameters with\n"
           "partial gradients or with a grad_layout. Use state_shards() to access this state.")
      .def("state_shards", &Optimizer::state_shards,
           nb::sig("def state_shards(self) -> list[StateShard]"),
           "Returns all state of this rank, parameter by parameter, with its position in the\n"
           "whole tensors. Use it to write your own checkpoints.");
}

}  // namespace binding
