#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "train/model.hpp"
#include "train/reference_gpt.hpp"

using namespace muonrt::train;
using namespace muonrt::train::test;

namespace {

using Direction = std::vector<double>;

double dot(const Direction& a, const Direction& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Direction unit(Direction direction) {
  const double length = std::sqrt(dot(direction, direction));
  for (double& x : direction) x /= length;
  return direction;
}

Direction random_direction(size_t size, std::mt19937& random) {
  std::normal_distribution<double> normal;
  Direction direction(size);
  for (double& x : direction) x = normal(random);
  return unit(direction);
}

/// Returns the derivative of the reference's loss along `direction` in parameter p, by central
/// differences. The loss is about 1e3, and rounding changes it by a relative error of about 2e-13.
/// After the division by 2 h, the error is 1e-8. The cubic term h^2 f''' / 6 is smaller.
double derivative(const Config& config, Tensors<double>& params, size_t p,
                  const Direction& direction, const std::vector<uint8_t>& tokens) {
  constexpr double kStep = 1e-5;
  std::vector<double>& values = params.values[p];
  const std::vector<double> before = values;
  const auto loss_at = [&](double step) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = before[i] + step * direction[i];
    return reference_loss(config, params.values, tokens);
  };
  const double up = loss_at(kStep), down = loss_at(-kStep);
  values = before;
  return (up - down) / (2.0 * kStep);
}

}  // namespace

TEST_CASE("train gradients: every parameter's gradient has the derivatives of the reference's loss",
          "[unit][train]") {
  struct Row {
    Config config;
    int64_t sequences;
  };
  for (const auto& [config, sequences] :
       {Row{preset("tiny"), 2},
        Row{{.layers = 1, .d_model = 21, .heads = 3, .context = 5, .vocab = 13, .mlp_ratio = 3}, 4},
        Row{{.layers = 1, .d_model = 6, .heads = 1, .context = 3, .vocab = 5, .mlp_ratio = 2},
            7}}) {
    const Tensors<float> params = lively_params(config, 7);
    Tensors<double> exact = widened(config, params);
    const auto tokens = some_tokens(config, sequences, 11);
    Tensors<float> grads(config);
    Workspace ws(config, sequences);
    const Gpt gpt(config);
    gpt.forward_backward(params.pointers().data(), tokens.data(), sequences, 1.0f,
                         grads.pointers().data(), ws);
    std::mt19937 random(3);
    for (size_t p = 0; p < grads.values.size(); ++p) {
      INFO("parameter " << gpt.params()[p].name << " of d_model " << config.d_model);
      const Direction gradient(grads.values[p].begin(), grads.values[p].end());
      const double size = std::sqrt(dot(gradient, gradient));
      // A gradient accumulates the rounding errors of about 30 operations, up to 6e-8 each.
      const double tolerance = 1e-5 * size + 1e-7;
      CHECK(size > 0.0);
      // The derivative along the gradient shows whether the length of the gradient is correct. The
      // derivative in a random direction shows other errors.
      const double own = derivative(config, exact, p, unit(gradient), tokens);
      CHECK(std::fabs(size - own) < tolerance);
      CHECK(std::fabs(1.0001 * size - own) > tolerance);
      const Direction other = random_direction(gradient.size(), random);
      CHECK(std::fabs(dot(gradient, other) - derivative(config, exact, p, other, tokens)) <
            tolerance);
    }
  }
}
