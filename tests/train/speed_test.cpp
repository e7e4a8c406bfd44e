#include <catch2/catch.hpp>
#include <cstdio>
#include <ctime>

#include "train/format.hpp"
#include "train/gemm.hpp"
#include "train/gpt.hpp"
#include "train/init.hpp"
#include "train/model.hpp"

using namespace muonrt::train;
using namespace muonrt::train::test;

namespace {

// Time that this thread had a core, so that other work on the machine counts less.
double core_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

template <class Run>
double seconds_each(double least, Run run) {
  run();
  const double start = core_seconds();
  double elapsed = 0.0;
  int count = 0;
  for (; elapsed < least; ++count) {
    run();
    elapsed = core_seconds() - start;
  }
  return elapsed / count;
}

}  // namespace

// Hidden: prints tokens per second of one core; checks nothing. Run: muonrt_train_tests "[speed]"
TEST_CASE("train speed: tokens per second of one core", "[.][speed]") {
  std::printf("products by %s\n%-8s %11s %9s %9s %14s %13s\n", gemm_name(), "preset", "parameters",
              "workspace", "GFLOP/s", "train tokens/s", "eval tokens/s");
  for (const char* const name : {"tiny", "small", "medium"}) {
    const Config config = preset(name);
    const Gpt<float> gpt(config);
    Tensors<float> params(config), grads(config);
    for (size_t p = 0; p < params.values.size(); ++p) {
      auto& tensor = params.values[p];
      init_range(config, 1, int64_t(p), 0, int64_t(tensor.size()), tensor.data());
    }
    const int64_t sequences = 8;
    const auto tokens = some_tokens(config, sequences, 1);
    Workspace<float> ws(config);
    const auto in = std::as_const(params).pointers();
    const auto out = grads.pointers();
    const double train = seconds_each(1.0, [&] {
      gpt.forward_backward(in.data(), tokens.data(), sequences, 1e-6f, out.data(), ws);
    });
    const double evaluate =
        seconds_each(0.5, [&] { gpt.evaluate(in.data(), tokens.data(), sequences, ws); });
    const double count = double(sequences * config.context);
    const int64_t elements = total_elements(gpt.params());
    std::printf("%-8s %11s %8.1fM %9.0f %14s %13s\n", name, with_commas(elements).c_str(),
                double(ws.bytes()) / 1e6, 6e-9 * double(elements) * count / train,
                with_commas(int64_t(count / train)).c_str(),
                with_commas(int64_t(count / evaluate)).c_str());
  }
}
