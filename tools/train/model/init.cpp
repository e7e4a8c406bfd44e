#include "train/model/init.hpp"

#include <cmath>

#include "train/random.hpp"

namespace muonrt::train {
namespace {

// Returns the sum of four uniform values, with mean 0 and variance 1. Its distribution is close to
// a normal distribution that is cut off at 3.46. Computing it needs no transcendental function,
// whose last bit could differ between machines.
double unit_normal(uint64_t seed, uint32_t index, uint64_t element) {
  const auto [words] = draw(seed, Stream::kInit, index, element);
  const int64_t sum = int64_t{words[0]} + words[1] + words[2] + words[3];
  const int64_t mean_times_2 = 4 * ((int64_t{1} << 32) - 1);
  // their variance is 4/12
  const double centred = static_cast<double>(2 * sum - mean_times_2) * 0x1p-33;
  return centred * 1.7320508075688772;
}

bool writes_to_residual(const Config& config, int64_t index) {
  const int64_t in_layer = index - ParamIndex::kFirstLayer;
  if (in_layer < 0 || index >= ParamIndex::norm(config)) return false;
  const int64_t what = in_layer % ParamIndex::kPerLayer;
  return what == ParamIndex::kWo || what == ParamIndex::kWDown;
}

double deviation_of(const Config& config, int64_t index) {
  const ParamSpec spec = param_specs(config).at(static_cast<size_t>(index));
  if (spec.role == Role::kVector) return 0.0;
  if (spec.role == Role::kEmbedding) return index == ParamIndex::head(config) ? 0.02 : 0.1;
  double deviation = 0.02 * std::sqrt(768.0 / static_cast<double>(spec.shape[1]));
  if (writes_to_residual(config, index)) {
    deviation /= std::sqrt(2.0 * static_cast<double>(config.layers));
  }
  return deviation;
}

}  // namespace

void init_param(const Config& config, uint64_t seed, int64_t index, float* out) {
  const ParamSpec spec = param_specs(config).at(static_cast<size_t>(index));
  const double deviation = deviation_of(config, index);
  for (int64_t i = 0; i < spec.elements(); ++i) {
    out[i] = spec.role == Role::kVector
                 ? 1.0f
                 : static_cast<float>(deviation * unit_normal(seed, static_cast<uint32_t>(index),
                                                              static_cast<uint64_t>(i)));
  }
}

}  // namespace muonrt::train
