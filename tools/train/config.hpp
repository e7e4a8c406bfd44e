#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt::train {

/// The sizes of the model. All sizes are positive, and `d_model` is a multiple of `heads`. Tokens
/// are bytes, so `vocab` is at most 256.
struct Config {
  int64_t layers = 0;
  int64_t d_model = 0;
  int64_t heads = 0;
  int64_t context = 0;
  int64_t vocab = 256;
  int64_t mlp_ratio = 4;

  int64_t head_dim() const { return d_model / heads; }
  int64_t d_mlp() const { return mlp_ratio * d_model; }
};

/// Returns a named configuration: `tiny` (for tests), `small` (the default) or `medium`. Throws
/// std::runtime_error for any other name, with a message that lists these names.
Config preset(const std::string& name);

/// The role of a parameter: Muon updates hidden matrices, and AdamW updates all other parameters.
enum class Role { kMatrix, kEmbedding, kVector };

/// One parameter. Matrices have the shape (out, in) and are row-major and contiguous.
struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  Role role = Role::kMatrix;

  int64_t elements() const;
};

/// Returns all parameters, in the order that all functions of the model use: wte and wpe; norm1,
/// wq, wk, wv, wo, norm2, w_up and w_down of each layer h<i>; norm and head.
std::vector<ParamSpec> param_specs(const Config& config);

/// The indices of the parameters in that order.
struct ParamIndex {
  static constexpr int64_t kWte = 0;
  static constexpr int64_t kWpe = 1;
  static constexpr int64_t kFirstLayer = 2;
  static constexpr int64_t kPerLayer = 8;
  enum InLayer : int64_t { kNorm1, kWq, kWk, kWv, kWo, kNorm2, kWUp, kWDown };

  static int64_t layer(int64_t layer_index, InLayer what) {
    return kFirstLayer + layer_index * kPerLayer + what;
  }
  static int64_t norm(const Config& config) { return kFirstLayer + config.layers * kPerLayer; }
  static int64_t head(const Config& config) { return norm(config) + 1; }
};

int64_t total_elements(const std::vector<ParamSpec>& specs);

}  // namespace muonrt::train
