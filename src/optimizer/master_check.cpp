#include "optimizer/master_check.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace muonrt {

namespace {

constexpr int64_t kElementsPerCopy = 1 << 20;

bool has_master(const ParamView& view) {
  return view.form == WeightForm::kMaster && view.numel > 0;
}

/// Returns the first of `count` weights that is not its master weight rounded, or `count`. All
/// values must be finite.
int64_t find_stale(const uint16_t* weights, const float* masters, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto master = std::bit_cast<uint32_t>(masters[i]);
    const uint32_t down = master >> 16, up = down + ((master & 0xffffu) != 0);
    if (weights[i] != down && weights[i] != up) return i;
  }
  return count;
}

int64_t find_stale(const float* weights, const float* masters, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (std::bit_cast<uint32_t>(weights[i]) != std::bit_cast<uint32_t>(masters[i])) return i;
  }
  return count;
}

[[noreturn]] void throw_stale(const ParamSettings& p, int64_t element, float weight, float master) {
  throw Error(
      Status::kInvalidArgument,
      cat("param '", p.name, "': local element ", element, " is ", weight,
          ", but its master weight is ", master, ", so the step would overwrite the parameter; ",
          p.master_kind == MasterKind::kCaller
              ? "write its master weights, too"
              : "call muonrt_optimizer_reset_masters() after you write parameters"));
}

}  // namespace

MasterCheck::MasterCheck(Device& device, const OptimizerSettings& settings, const ParamView* params)
    : device_(&device) {
  if (device.host_reaches_memory()) return;
  int64_t largest = 0;
  for (size_t i = 0; i < settings.params.size(); ++i)
    if (has_master(params[i])) largest = std::max(largest, params[i].numel);
  weights_ = Buffer::shared(device, bytes(largest));
  masters_ = Buffer::shared(device, bytes(largest));
}

int64_t MasterCheck::bytes(int64_t numel) { return std::min(numel, kElementsPerCopy) * 4; }

void MasterCheck::require_equal(Pipeline& pipeline, const OptimizerSettings& settings,
                                const ParamView* params, int64_t param) const {
  const ParamView& view = params[param];
  if (!has_master(view)) return;
  const int64_t size = size_of(view.param_dtype);
  for (int64_t begin = 0; begin < view.numel; begin += kElementsPerCopy) {
    const int64_t count = std::min(kElementsPerCopy, view.numel - begin);
    const void* weights = static_cast<const char*>(view.param) + begin * size;
    const float* masters = view.master + begin;
    if (weights_.data()) {
      pipeline.run_between_steps([&](Stream& stream) {
        device_->ops().copy(stream, weights_.data(), weights, count * size);
        device_->ops().copy(stream, masters_.data(), masters, count * 4);
      });
      weights = weights_.data();
      masters = masters_.as<float>();
    }
    const bool half = view.param_dtype == DType::kBF16;
    const int64_t other = half ? find_stale(static_cast<const uint16_t*>(weights), masters, count)
                               : find_stale(static_cast<const float*>(weights), masters, count);
    if (other == count) continue;
    const uint32_t bits = half ? uint32_t{static_cast<const uint16_t*>(weights)[other]} << 16 : 0;
    throw_stale(settings.params[static_cast<size_t>(param)], begin + other,
                half ? std::bit_cast<float>(bits) : static_cast<const float*>(weights)[other],
                masters[other]);
  }
}

}  // namespace muonrt
