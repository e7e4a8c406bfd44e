#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "train/config.hpp"
#include "train/model/gpt.hpp"

namespace muonrt::train::test {

/// The full tensors of all parameters, and the pointers that the model accepts.
template <class T>
struct Tensors {
  explicit Tensors(const Config& config) {
    for (const ParamSpec& spec : param_specs(config)) {
      values.emplace_back(static_cast<size_t>(spec.elements()), T{0});
    }
  }

  std::vector<T*> pointers() {
    std::vector<T*> list;
    for (auto& tensor : values) list.push_back(tensor.data());
    return list;
  }
  std::vector<const T*> pointers() const {
    std::vector<const T*> list;
    for (const auto& tensor : values) list.push_back(tensor.data());
    return list;
  }

  std::vector<std::vector<T>> values;
};

/// Returns parameters for which every part of the model affects the result. Matrices preserve the
/// norm of the vectors that they multiply, so attention is far from uniform. Gains differ from 1.
inline Tensors<float> lively_params(const Config& config, unsigned seed) {
  Tensors<float> params(config);
  const auto specs = param_specs(config);
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (size_t p = 0; p < specs.size(); ++p) {
    for (float& value : params.values[p]) {
      const float u = uniform(random);
      value = specs[p].role == Role::kVector      ? 1.0f + 0.5f * u
              : specs[p].role == Role::kEmbedding ? u
                                                  : u * std::sqrt(3.0f / float(specs[p].shape[1]));
    }
  }
  return params;
}

inline Tensors<double> widened(const Config& config, const Tensors<float>& from) {
  Tensors<double> to(config);
  for (size_t p = 0; p < from.values.size(); ++p) {
    std::copy(from.values[p].begin(), from.values[p].end(), to.values[p].begin());
  }
  return to;
}

/// Returns `sequences` windows, each of `context + 1` bytes. They contain only a few distinct
/// values, so some values repeat.
inline std::vector<uint8_t> some_tokens(const Config& config, int64_t sequences, unsigned seed) {
  std::mt19937 random(seed);
  const auto kinds = static_cast<unsigned>(std::min<int64_t>(config.vocab, 40));
  std::vector<uint8_t> tokens(static_cast<size_t>(sequences * (config.context + 1)));
  for (uint8_t& token : tokens) {
    token = static_cast<uint8_t>((random() % kinds) * static_cast<unsigned>(config.vocab) / kinds);
  }
  return tokens;
}

}  // namespace muonrt::train::test
