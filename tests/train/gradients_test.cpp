#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "train/model.hpp"
#include "train/model/gpt.hpp"

using namespace muonrt::train;
using namespace muonrt::train::test;

namespace {

// Central differences of the summed loss in float64. The loss is about 1e3 and loses some 2e-13 of
// that to rounding, which over 2 h leaves 1e-8; the cubic term h^2 f''' / 6 is below that. Ten
// times as much is allowed, absolute for small derivatives and relative for those above 1.
constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-7;

bool gradients_agree(double analytic, double numeric) {
  return std::fabs(analytic - numeric) <=
         kTolerance * (1.0 + std::max(std::fabs(analytic), std::fabs(numeric)));
}

struct Setup {
  explicit Setup(const Config& config, int64_t sequences_)
      : sequences(sequences_),
        gpt(config),
        params(lively_params(config, 7)),
        grads(config),
        tokens(some_tokens(config, sequences_, 11)),
        ws(config, sequences_) {
    gpt.forward_backward(std::as_const(params).pointers().data(), tokens.data(), sequences, 1.0,
                         grads.pointers().data(), ws);
  }

  double loss() {
    return gpt.evaluate(std::as_const(params).pointers().data(), tokens.data(), sequences, ws);
  }

  double numeric_entry(size_t p, size_t i) {
    double& value = params.values[p][i];
    const double before = value;
    value = before + kStep;
    const double up = loss();
    value = before - kStep;
    const double down = loss();
    value = before;
    return (up - down) / (2.0 * kStep);
  }

  // Along `direction`, of length 1, in parameter p.
  double numeric_along(size_t p, const std::vector<double>& direction) {
    auto& values = params.values[p];
    const std::vector<double> before = values;
    auto at = [&](double step) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = before[i] + step * direction[i];
      return loss();
    };
    const double up = at(kStep);
    const double down = at(-kStep);
    values = before;
    return (up - down) / (2.0 * kStep);
  }

  int64_t sequences;
  Gpt<double> gpt;
  Tensors<double> params, grads;
  std::vector<uint8_t> tokens;
  Workspace<double> ws;
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Random directions, and the gradient's own, along which an error of its scale shows at once.
std::vector<std::vector<double>> directions(const std::vector<double>& gradient,
                                            std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> list{gradient};
  for (int n = 0; n < 2; ++n) {
    std::vector<double> direction(gradient.size());
    for (double& x : direction) x = normal(random);
    list.push_back(direction);
  }
  for (auto& direction : list) {
    const double length = std::sqrt(dot(direction, direction));
    for (double& x : direction) x /= length;
  }
  return list;
}

void check_all(const Config& config, int64_t sequences, int entries) {
  Setup setup(config, sequences);
  std::mt19937 random(3);
  const auto& specs = setup.gpt.params();
  for (size_t p = 0; p < specs.size(); ++p) {
    INFO("parameter " << specs[p].name);
    const auto& gradient = setup.grads.values[p];
    CHECK(dot(gradient, gradient) > 0.0);
    for (const auto& direction : directions(gradient, random)) {
      const double analytic = dot(gradient, direction);
      const double numeric = setup.numeric_along(p, direction);
      CAPTURE(analytic, numeric);
      CHECK(gradients_agree(analytic, numeric));
    }
    for (int n = 0; n < entries; ++n) {
      const size_t i = random() % gradient.size();
      const double numeric = setup.numeric_entry(p, i);
      CAPTURE(i, gradient[i], numeric);
      CHECK(gradients_agree(gradient[i], numeric));
    }
  }
}

}  // namespace

TEST_CASE("train gradients: every parameter of the tiny model meets central differences",
          "[unit][train]") {
  check_all(preset("tiny"), 2, 6);
}

TEST_CASE("train gradients: odd sizes and one head meet central differences", "[unit][train]") {
  check_all({.layers = 1, .d_model = 21, .heads = 3, .context = 5, .vocab = 13, .mlp_ratio = 3}, 4,
            6);
  check_all({.layers = 1, .d_model = 6, .heads = 1, .context = 3, .vocab = 5, .mlp_ratio = 2}, 7,
            6);
}

TEST_CASE("train gradients: the comparison rejects planted errors", "[unit][train]") {
  Setup setup(preset("tiny"), 2);
  std::mt19937 random(5);
  const auto& specs = setup.gpt.params();
  for (size_t p = 0; p < specs.size(); ++p) {
    INFO("parameter " << specs[p].name);
    auto planted = setup.grads.values[p];
    const auto along = directions(planted, random).front();
    const double numeric = setup.numeric_along(p, along);
    for (double& g : planted) g *= 1.00001;
    CHECK_FALSE(gradients_agree(dot(planted, along), numeric));
    planted = setup.grads.values[p];
    // One entry with the wrong sign, found by its own difference.
    const size_t largest =
        size_t(std::max_element(planted.begin(), planted.end(),
                                [](double a, double b) { return std::fabs(a) < std::fabs(b); }) -
               planted.begin());
    CHECK_FALSE(gradients_agree(-planted[largest], setup.numeric_entry(p, largest)));
  }
}

TEST_CASE("train gradients: float32 follows float64", "[unit][train]") {
  const Config config{.layers = 2, .d_model = 48, .heads = 3, .context = 40};
  const int64_t sequences = 5;
  const auto params = rounded(config, lively_params(config, 21));
  const auto exact = widened(config, params);
  const auto tokens = some_tokens(config, sequences, 22);
  const Gpt<float> single(config);
  const Gpt<double> twice(config);
  Tensors<float> grads(config);
  Tensors<double> exact_grads(config);
  Workspace<float> ws(config, sequences);
  Workspace<double> exact_ws(config, sequences);
  const double loss = single.forward_backward(params.pointers().data(), tokens.data(), sequences,
                                              0.01f, grads.pointers().data(), ws);
  const double exact_loss =
      twice.forward_backward(exact.pointers().data(), tokens.data(), sequences, 0.01,
                             exact_grads.pointers().data(), exact_ws);
  // About 30 roundings of 6e-8 in a row from byte to logit, growing with the square root of it.
  CHECK(loss == Approx(exact_loss).epsilon(1e-6));
  for (size_t p = 0; p < grads.values.size(); ++p) {
    INFO("parameter " << single.params()[p].name);
    CHECK(relative_distance(grads.values[p], exact_grads.values[p]) < 1e-5);
  }
}
