#include "optimizer/master_check.hpp"

#include <algorithm>
#include <optional>

#include "backend/weight_bits.hpp"
#include "optimizer/agreement.hpp"

namespace muonrt {

namespace {

constexpr int64_t kElementsPerCopy = 1 << 20;

struct Stale {
  int64_t element;
  float weight, master;
};

template <class Weight>
std::optional<Stale> find_in(const Weight* weights, const float* masters, int64_t begin,
                             int64_t count, bool by_caller) {
  for (int64_t i = 0; i < count; ++i)
    if (is_stale(weights[i], masters[i], by_caller))
      return Stale{begin + i, to_f32(weights[i]), masters[i]};
  return std::nullopt;
}

/// Finds the first stale element. If the host cannot access the device's memory, copies the memory
/// to the host.
std::optional<Stale> find_stale(Device& device, Pipeline& pipeline, const ParamView& view) {
  const int64_t size = size_of(view.param_dtype), most = std::min(view.numel, kElementsPerCopy);
  const bool copies = !device.host_reaches_memory();
  const Buffer weight_copy = copies ? Buffer::shared(device, most * size) : Buffer();
  const Buffer master_copy = copies ? Buffer::shared(device, most * 4) : Buffer();
  std::optional<Stale> found;
  for (int64_t begin = 0; begin < view.numel && !found; begin += most) {
    const int64_t count = std::min(most, view.numel - begin);
    const void* weights = static_cast<const char*>(view.param) + begin * size;
    const float* masters = view.master + begin;
    if (copies) {
      pipeline.run_between_steps([&](Stream& stream) {
        device.ops().copy(stream, weight_copy.data(), weights, count * size);
        device.ops().copy(stream, master_copy.data(), masters, count * 4);
      });
      weights = weight_copy.data();
      masters = master_copy.as<float>();
    }
    const bool by_caller = view.rounded_by_caller != 0;
    found = view.param_dtype == DType::kF32
                ? find_in(static_cast<const float*>(weights), masters, begin, count, by_caller)
                : find_in(static_cast<const bf16*>(weights), masters, begin, count, by_caller);
  }
  return found;
}

}  // namespace

Error stale_weights_error(Device& device, Pipeline& pipeline, const ParamSettings& param,
                          const ParamView& view) {
  std::optional<Stale> found;
  const auto error = capture_error([&] { found = find_stale(device, pipeline, view); });
  if (error && error->status() != Status::kOutOfMemory) return *error;
  return error_with_message(Status::kInvalidArgument, [&] {
    const std::string what = found ? cat("local element ", found->element, " is ", found->weight,
                                         ", but its master weight is ", found->master)
                                   : "its weights differ from its master weights";
    return cat("param '", param.name, "': ", what, ", so the step would overwrite the parameter; ",
               param.master_kind == MasterKind::kCaller
                   ? "write its master weights, too"
                   : "call muonrt_optimizer_reset_masters() after you write parameters");
  });
}

}  // namespace muonrt
