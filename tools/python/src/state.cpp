#include "optimizer.hpp"

namespace binding {

/// An array over memory of the optimizer's, which lives as long.
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

nb::object Optimizer::state(nb::handle param, const std::string& kind) {
  Busy busy(busy_, "the optimizer");
  const size_t i = index(param);
  auto view = muonrt::detail::filled(muonrt_state_view_init_sized);
  check(muonrt_optimizer_state(get(), static_cast<int64_t>(i), state_of(kind), &view));
  std::vector<size_t> shape{static_cast<size_t>(view.numel)};
  if (view.place == MUONRT_PLACE_LOCAL)
    shape.assign(held_->data[i].shape.begin(), held_->data[i].shape.end());
  return over_memory(view.data, view.dtype, shape);
}

std::vector<StateExtent> Optimizer::state_extents() {
  Busy busy(busy_, "the optimizer");
  int64_t count = 0;
  check(muonrt_optimizer_get_state_shards(get(), nullptr, 0, &count));
  std::vector<muonrt_state_shard_t> found(static_cast<size_t>(count),
                                          muonrt::detail::filled(muonrt_state_shard_init_sized));
  check(muonrt_optimizer_get_state_shards(get(), found.data(), count, &count));
  std::vector<StateExtent> out;
  for (const muonrt_state_shard_t& e : found) {
    StateExtent& extent = out.emplace_back();
    extent.param = names[static_cast<size_t>(e.param)];
    extent.kind = state_word(e.kind);
    extent.shape.assign(e.shape, e.shape + e.ndim);
    const muonrt_run_t* run = e.runs;
    for (int32_t dim = 0; dim < e.ndim; ++dim) {
      auto& list = extent.runs.emplace_back();
      for (int64_t i = 0; i < e.n_runs[dim]; ++i, ++run) list.emplace_back(run->begin, run->end);
    }
    extent.begin = e.begin;
    extent.end = e.end;
    extent.written = {e.first_written, e.end_written};
    extent.data = over_memory(e.data, e.dtype, {static_cast<size_t>(e.end - e.begin)});
  }
  return out;
}

void bind_state(nb::class_<Optimizer>& optimizer) {
  optimizer
      .def(
          "state", &Optimizer::state, nb::arg("param"), nb::arg("kind"),
          nb::sig("def state(self, param: str | int, kind: str) -> typing.Any"),
          "A NumPy array (on CUDA: a DLPack capsule, for from_dlpack of a framework) over "
          "muonrt's\n"
          "own memory: \"momentum\", \"variance\", \"master\" (float32,\n"
          "the shard's shape), \"remainder\" (uint16), \"normuon\". bf16 momentum is uint16 bits.\n"
          "Write to it only between steps. Where the gradient lies otherwise than the parameter\n"
          "it has one dimension; see state_extents.")
      .def("state_extents", &Optimizer::state_extents,
           "All state of this rank, parameter by parameter, as a list of StateExtent: where each\n"
           "piece lies in the whole tensor, for a checkpoint of your own");
}

}  // namespace binding
