#include "train/model.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "train/model/gpt.hpp"
#include "train/model/init.hpp"
#include "train/reference_gpt.hpp"

using namespace muonrt::train;
using namespace muonrt::train::test;

namespace {

Tensors<float> initial(const Config& config, uint64_t seed) {
  Tensors<float> params(config);
  for (size_t p = 0; p < params.values.size(); ++p) {
    init_param(config, seed, int64_t(p), params.values[p].data());
  }
  return params;
}

}  // namespace

TEST_CASE("train model: the parameters are those of the formula, in their order", "[unit][train]") {
  const Config config = preset("tiny");
  const auto specs = param_specs(config);
  REQUIRE(specs.size() == 2 + 2 * 8 + 2);
  struct Row {
    int64_t index;
    const char* name;
    std::vector<int64_t> shape;
    Role role;
  };
  for (const Row& row :
       {Row{ParamIndex::kWte, "wte", {256, 32}, Role::kEmbedding},
        Row{ParamIndex::kWpe, "wpe", {32, 32}, Role::kEmbedding},
        Row{ParamIndex::layer(0, ParamIndex::kNorm2), "h0.norm2", {32}, Role::kVector},
        Row{ParamIndex::layer(0, ParamIndex::kWo), "h0.wo", {32, 32}, Role::kMatrix},
        Row{ParamIndex::layer(1, ParamIndex::kWUp), "h1.w_up", {128, 32}, Role::kMatrix},
        Row{ParamIndex::layer(1, ParamIndex::kWDown), "h1.w_down", {32, 128}, Role::kMatrix},
        Row{ParamIndex::norm(config), "norm", {32}, Role::kVector},
        Row{ParamIndex::head(config), "head", {256, 32}, Role::kEmbedding}}) {
    const ParamSpec& spec = specs[size_t(row.index)];
    CHECK(spec.name == row.name);
    CHECK(spec.shape == row.shape);
    CHECK(spec.role == row.role);
  }
  // Each layer has 12 d^2 + 2 d parameters. In addition, there are two vocabulary tables, the
  // positions and the last norm.
  CHECK(total_elements(param_specs(preset("small"))) ==
        4 * (12 * 128 * 128 + 2 * 128) + 2 * 256 * 128 + 64 * 128 + 128);
  CHECK_THROWS_WITH(preset("huge"), Catch::EndsWith("use one of tiny, small, medium"));
}

TEST_CASE("train model: loss and the largest input of each softmax are the reference's",
          "[unit][train]") {
  const Config config{.layers = 2, .d_model = 24, .heads = 3, .context = 19, .vocab = 50};
  const int64_t sequences = 3;
  const Tensors<float> params = lively_params(config, 1);
  const Tensors<double> exact = widened(config, params);
  const auto tokens = some_tokens(config, sequences, 2);
  const Gpt gpt(config);
  Workspace ws(config, sequences);
  CHECK(gpt.evaluate(params.pointers().data(), tokens.data(), sequences, ws) ==
        Approx(reference_loss(config, exact.values, tokens)).epsilon(1e-6));
  std::vector<double> most(6, -std::numeric_limits<double>::infinity());
  for (int64_t s = 0; s < sequences; ++s) {
    reference_logits(config, exact.values, tokens.data() + s * (config.context + 1), config.context,
                     most.data());
  }
  for (size_t i = 0; i < 6; ++i) CHECK(ws.attention_max[i] == Approx(most[i]).epsilon(1e-5));
}

TEST_CASE("train model: NaN in a weight reaches loss and gradients", "[unit][train]") {
  const Config config{.layers = 1, .d_model = 16, .heads = 2, .context = 8};
  auto params = lively_params(config, 8);
  params.values[size_t(ParamIndex::layer(0, ParamIndex::kWq))][3] = std::nanf("");
  const auto tokens = some_tokens(config, 1, 9);
  Tensors<float> grads(config);
  Workspace ws(config, 1);
  CHECK(std::isnan(Gpt(config).forward_backward(std::as_const(params).pointers().data(),
                                                tokens.data(), 1, 1.0f, grads.pointers().data(),
                                                ws)));
  CHECK(std::isnan(grads.values[0][size_t(tokens[0]) * 16]));
}

TEST_CASE("train init: deviations are as documented, and seeds and parameters differ",
          "[unit][train]") {
  const Config config = preset("small");
  const auto specs = param_specs(config);
  const auto params = initial(config, 1), other = initial(config, 2);
  for (size_t p = 0; p < specs.size(); ++p) {
    INFO("parameter " << specs[p].name);
    const auto& values = params.values[p];
    if (specs[p].role == Role::kVector) {
      CHECK(std::all_of(values.begin(), values.end(), [](float v) { return v == 1.0f; }));
      continue;
    }
    double sum = 0.0, squares = 0.0;
    for (const float v : values) {
      sum += double(v);
      squares += double(v) * double(v);
    }
    const double count = double(values.size());
    const std::string name = specs[p].name.substr(specs[p].name.find('.') + 1);
    const double width = name == "w_down" ? 512.0 : 128.0;
    double expected = name == "wte" || name == "wpe" ? 0.1
                      : name == "head"               ? 0.02
                                                     : 0.02 * std::sqrt(768.0 / width);
    if (name == "wo" || name == "w_down") expected /= std::sqrt(8.0);
    // The standard errors are 1 / sqrt(count) and about 0.6 / sqrt(count). The bounds are five
    // standard errors.
    CHECK(std::fabs(sum / count) < 5.0 * expected / std::sqrt(count));
    CHECK(std::sqrt(squares / count) == Approx(expected).epsilon(5.0 / std::sqrt(count)));
    CHECK(values != other.values[p]);
  }
  CHECK(params.values[size_t(ParamIndex::layer(0, ParamIndex::kWq))] !=
        params.values[size_t(ParamIndex::layer(0, ParamIndex::kWk))]);
}
