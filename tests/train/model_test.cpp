#include "train/model.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "train/gpt.hpp"
#include "train/init.hpp"
#include "train/text.hpp"
#include "train/textbook_gpt.hpp"

using namespace muonrt::train;
using namespace muonrt::train::test;

namespace {

Tensors<float> initial(const Config& config, uint64_t seed) {
  Tensors<float> params(config);
  for (size_t p = 0; p < params.values.size(); ++p) {
    auto& tensor = params.values[p];
    init_range(config, seed, int64_t(p), 0, int64_t(tensor.size()), tensor.data());
  }
  return params;
}

struct Result {
  double loss;
  Tensors<float> grads;
};

Result run(const Config& config, const Tensors<float>& params, const uint8_t* tokens,
           int64_t sequences, int64_t per_pass) {
  Result result{0.0, Tensors<float>(config)};
  Workspace<float> ws(config, per_pass);
  result.loss = Gpt<float>(config).forward_backward(params.pointers().data(), tokens, sequences,
                                                    1.0f, result.grads.pointers().data(), ws);
  return result;
}

}  // namespace

TEST_CASE("train model: the parameters are those of the formula, in their order", "[unit][train]") {
  const auto specs = param_specs(preset("tiny"));
  const Config config = preset("tiny");
  REQUIRE(specs.size() == 2 + 2 * 8 + 2);
  CHECK(specs[0].name == "wte");
  CHECK(specs[0].shape == std::vector<int64_t>{256, 32});
  CHECK(specs[1].shape == std::vector<int64_t>{32, 32});
  const auto index = [](int64_t layer, ParamIndex::InLayer what) {
    return size_t(ParamIndex::layer(layer, what));
  };
  CHECK(specs[index(1, ParamIndex::kWUp)].name == "h1.w_up");
  CHECK(specs[index(1, ParamIndex::kWUp)].shape == std::vector<int64_t>{128, 32});
  CHECK(specs[index(0, ParamIndex::kWDown)].shape == std::vector<int64_t>{32, 128});
  CHECK(specs[index(0, ParamIndex::kNorm2)].role == Role::kVector);
  CHECK(specs[index(0, ParamIndex::kWo)].role == Role::kMatrix);
  CHECK(specs[size_t(ParamIndex::norm(config))].name == "norm");
  CHECK(specs[size_t(ParamIndex::head(config))].role == Role::kEmbedding);
  // 12 d^2 + 2 d a layer, two vocabulary tables, positions, last norm.
  CHECK(total_elements(specs) == 2 * (12 * 32 * 32 + 2 * 32) + 2 * 256 * 32 + 32 * 32 + 32);
  CHECK(total_elements(param_specs(preset("small"))) ==
        4 * (12 * 128 * 128 + 2 * 128) + 2 * 256 * 128 + 64 * 128 + 128);
}

TEST_CASE("train model: configurations that cannot be are refused", "[unit][train]") {
  CHECK_THROWS_WITH(preset("huge"), Catch::EndsWith("use one of tiny, small, medium"));
  CHECK_THROWS_WITH(param_specs({.layers = 2, .d_model = 30, .heads = 4, .context = 8}),
                    Catch::Contains("no multiple of heads 4"));
  CHECK_THROWS_WITH(param_specs({.layers = 0, .d_model = 32, .heads = 4, .context = 8}),
                    Catch::Contains("layers is 0"));
  CHECK_THROWS_WITH(
      param_specs({.layers = 1, .d_model = 32, .heads = 4, .context = 8, .vocab = 257}),
      Catch::Contains("at most 256"));
}

TEST_CASE("train model: loss and logits are the textbook's", "[unit][train]") {
  const Config config{.layers = 2, .d_model = 24, .heads = 3, .context = 19, .vocab = 50};
  const int64_t sequences = 3;
  const auto params = lively_params(config, 1);
  const auto tokens = some_tokens(config, sequences, 2);
  double expected = 0.0;
  for (int64_t s = 0; s < sequences; ++s) {
    expected += textbook_loss(config, params.values, tokens.data() + s * (config.context + 1));
  }
  const Gpt<double> gpt(config);
  Workspace<double> ws(config);
  CHECK(gpt.evaluate(params.pointers().data(), tokens.data(), sequences, ws) ==
        Approx(expected).epsilon(1e-12));

  const auto logits = textbook_logits(config, params.values, tokens.data(), config.context);
  std::vector<double> got(size_t(config.vocab));
  for (const int64_t length : {int64_t{1}, int64_t{7}, config.context}) {
    gpt.next_logits(params.pointers().data(), tokens.data(), length, got.data(), ws);
    CHECK(relative_distance(got, logits[size_t(length - 1)]) < 1e-12);
  }

  const auto single = rounded(config, params);
  const double single_expected = [&] {
    double sum = 0.0;
    const auto exact = widened(config, single);
    for (int64_t s = 0; s < sequences; ++s) {
      sum += textbook_loss(config, exact.values, tokens.data() + s * (config.context + 1));
    }
    return sum;
  }();
  Workspace<float> single_ws(config);
  CHECK(Gpt<float>(config).evaluate(single.pointers().data(), tokens.data(), sequences,
                                    single_ws) == Approx(single_expected).epsilon(1e-6));
}

TEST_CASE("train model: the largest input of each head's softmax is the textbook's",
          "[unit][train]") {
  const Config config{.layers = 2, .d_model = 24, .heads = 3, .context = 19};
  const auto params = lively_params(config, 1);
  const int64_t sequences = 5;
  const auto tokens = some_tokens(config, sequences, 4);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<double> expected(6, kNone), first(6, kNone);
  for (int64_t s = 0; s < sequences; ++s) {
    const uint8_t* own = tokens.data() + s * (config.context + 1);
    textbook_logits(config, params.values, own, config.context, expected.data());
    if (s == 0) textbook_logits(config, params.values, own, config.context, first.data());
  }
  Workspace<double> ws(config, 2);  // several passes
  CHECK(ws.attention_max == std::vector<double>(6, kNone));
  Gpt<double>(config).evaluate(params.pointers().data(), tokens.data(), sequences, ws);
  for (size_t i = 0; i < 6; ++i) CHECK(ws.attention_max[i] == Approx(expected[i]).epsilon(1e-12));
  CHECK(expected != first);
  ws.forget_attention_max();
  Gpt<double>(config).evaluate(params.pointers().data(), tokens.data(), 1, ws);
  for (size_t i = 0; i < 6; ++i) CHECK(ws.attention_max[i] == Approx(first[i]).epsilon(1e-12));
}

TEST_CASE("train model: no position sees the byte that it predicts", "[unit][train]") {
  const Config config{.layers = 2, .d_model = 24, .heads = 3, .context = 19};
  const auto params = lively_params(config, 1);
  const Gpt<double> gpt(config);
  Workspace<double> ws(config, 1);
  auto tokens = some_tokens(config, 1, 4);
  std::vector<double> logits(256);
  gpt.next_logits(params.pointers().data(), tokens.data(), config.context, logits.data(), ws);
  auto loss_with_last = [&](uint8_t byte) {
    tokens.back() = byte;
    return gpt.evaluate(params.pointers().data(), tokens.data(), 1, ws);
  };
  const double base = loss_with_last(0);
  for (const uint8_t byte : {uint8_t{1}, uint8_t{77}, uint8_t{255}}) {
    CHECK(loss_with_last(byte) - base == Approx(logits[0] - logits[byte]).margin(1e-11));
  }
}

TEST_CASE("train model: a fresh model costs about log(256) a byte", "[unit][train]") {
  for (const char* const name : {"tiny", "small", "medium"}) {
    const Config config = preset(name);
    const auto params = initial(config, 5);
    const auto tokens = some_tokens(config, 2, 6);
    Workspace<float> ws(config);
    const double loss =
        Gpt<float>(config).evaluate(params.pointers().data(), tokens.data(), 2, ws) /
        double(2 * config.context);
    // The logits have a deviation of 0.02 sqrt(d_model), at most 0.32, which costs half its square.
    CHECK(loss == Approx(std::log(256.0)).margin(0.2));
  }
}

TEST_CASE("train model: a batch dealt out to ranks has the loss and gradient of the whole",
          "[unit][train]") {
  const Config config{.layers = 2, .d_model = 32, .heads = 2, .context = 24};
  const int64_t sequences = 12;
  const auto params = rounded(config, lively_params(config, 8));
  const auto tokens = some_tokens(config, sequences, 9);
  const Result whole = run(config, params, tokens.data(), sequences, sequences);
  for (const int64_t ranks : {2, 3, 4}) {
    for (const int64_t per_pass : {1, 2, 5}) {
      CAPTURE(ranks, per_pass);
      double loss = 0.0;
      Tensors<float> sum(config);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int64_t share = sequences / ranks;
        const uint8_t* own = tokens.data() + rank * share * (config.context + 1);
        const Result part = run(config, params, own, share, per_pass);
        loss += part.loss;
        for (size_t p = 0; p < sum.values.size(); ++p) {
          for (size_t i = 0; i < sum.values[p].size(); ++i) {
            sum.values[p][i] += part.grads.values[p][i];
          }
        }
      }
      // Only the order of sums over tokens differs; a product's bits may depend on its number of
      // rows, so losses agree to float rounding, not bit for bit.
      CHECK(loss == Approx(whole.loss).epsilon(1e-7));
      for (size_t p = 0; p < sum.values.size(); ++p) {
        CHECK(relative_distance(sum.values[p], whole.grads.values[p]) < 3e-6);
      }
    }
  }
}

TEST_CASE("train model: gradients are added and scaled", "[unit][train]") {
  const Config config{.layers = 1, .d_model = 16, .heads = 2, .context = 8};
  const auto params = rounded(config, lively_params(config, 8));
  const auto tokens = some_tokens(config, 2, 9);
  const Result once = run(config, params, tokens.data(), 2, 2);
  Tensors<float> grads(config);
  for (auto& tensor : grads.values) std::fill(tensor.begin(), tensor.end(), 1.0f);
  Workspace<float> ws(config, 2);
  const double loss = Gpt<float>(config).forward_backward(params.pointers().data(), tokens.data(),
                                                          2, 0.25f, grads.pointers().data(), ws);
  CHECK(loss == once.loss);
  for (size_t p = 0; p < grads.values.size(); ++p) {
    for (size_t i = 0; i < grads.values[p].size(); ++i) {
      const double expected = 1.0 + 0.25 * double(once.grads.values[p][i]);
      REQUIRE(double(grads.values[p][i]) == Approx(expected).margin(1e-5));
    }
  }
}

TEST_CASE("train model: threads with their own workspaces get the bits of one", "[unit][train]") {
  const Config config{.layers = 2, .d_model = 32, .heads = 2, .context = 24};
  const auto params = rounded(config, lively_params(config, 8));
  const auto tokens = some_tokens(config, 4, 9);
  const Result expected = run(config, params, tokens.data(), 4, 2);
  std::vector<Result> results;
  for (int i = 0; i < 4; ++i) results.push_back({0.0, Tensors<float>(config)});
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] { result = run(config, params, tokens.data(), 4, 2); });
  }
  for (auto& thread : threads) thread.join();
  for (const Result& result : results) {
    CHECK(result.loss == expected.loss);
    CHECK(result.grads.values == expected.grads.values);
  }
}

TEST_CASE("train model: NaN in a weight reaches loss and gradients", "[unit][train]") {
  const Config config{.layers = 1, .d_model = 16, .heads = 2, .context = 8};
  auto params = rounded(config, lively_params(config, 8));
  params.values[size_t(ParamIndex::layer(0, ParamIndex::kWq))][3] = std::nanf("");
  const auto tokens = some_tokens(config, 1, 9);
  const Result result = run(config, params, tokens.data(), 1, 1);
  CHECK(std::isnan(result.loss));
  CHECK(std::isnan(result.grads.values[0][size_t(tokens[0]) * 16]));
}

TEST_CASE("train model: what does not fit is refused with its reason", "[unit][train]") {
  const Config config{.layers = 1, .d_model = 16, .heads = 2, .context = 8, .vocab = 10};
  const auto params = rounded(config, lively_params(config, 8));
  auto tokens = some_tokens(config, 1, 9);
  const Gpt<float> gpt(config);
  Workspace<float> ws(config);
  Workspace<float> other(preset("tiny"));
  float logits[10];
  const auto pointers = params.pointers();
  CHECK_THROWS_WITH(gpt.evaluate(pointers.data(), tokens.data(), 1, other),
                    Catch::Contains("another model"));
  CHECK_THROWS_WITH(gpt.next_logits(pointers.data(), tokens.data(), 9, logits, ws),
                    Catch::Contains("give 1 to 8"));
  tokens[4] = 10;
  CHECK_THROWS_WITH(gpt.evaluate(pointers.data(), tokens.data(), 1, ws),
                    Catch::Contains("token 10 at 4 is not below vocab 10"));
}

TEST_CASE("train model: plain gradient descent learns a repeating text", "[unit][train]") {
  const Config config{.layers = 1, .d_model = 32, .heads = 2, .context = 16};
  auto params = initial(config, 3);
  const Gpt<float> gpt(config);
  Workspace<float> ws(config);
  std::vector<uint8_t> bytes(4000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = uint8_t("muon "[i % 5]);
  const Corpus corpus({"muon", bytes}, config.context);
  double loss = 0.0;
  for (int64_t step = 0; step < 150; ++step) {
    const auto batch = corpus.train_batch(1, step, 0, 4);
    Tensors<float> grads(config);
    const float scale = 1.0f / float(4 * config.context);
    loss =
        double(scale) * gpt.forward_backward(std::as_const(params).pointers().data(), batch.data(),
                                             4, scale, grads.pointers().data(), ws);
    for (size_t p = 0; p < params.values.size(); ++p) {
      for (size_t i = 0; i < params.values[p].size(); ++i) {
        params.values[p][i] -= 0.5f * grads.values[p][i];
      }
    }
  }
  CHECK(loss < 0.2);  // from log(256) = 5.5; five bytes tell the next one for certain
}
