#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace muonrt::tool {

/// A function that runs a subcommand after its arguments have been parsed, and returns the exit
/// code.
using Work = std::function<int()>;

// Each of these functions adds a subcommand to `app`. When CLI11 parses this subcommand, it sets
// `work`.
void add_bench(CLI::App& app, Work& work);
void add_bench_elementwise(CLI::App& bench, Work& work);
void add_bench_calibrate(CLI::App& bench, Work& work);
void add_bench_exchange(CLI::App& bench, Work& work);
void add_bench_gemm(CLI::App& bench, Work& work);
void add_bench_ns(CLI::App& bench, Work& work);
void add_bench_step(CLI::App& bench, Work& work);
void add_info(CLI::App& app, Work& work);
void add_info_coefficients(CLI::App& info, Work& work);
void add_info_defaults(CLI::App& info, Work& work);
void add_info_optimizers(CLI::App& info, Work& work);
void add_info_pages(CLI::App& info, Work& work);
void add_layout(CLI::App& app, Work& work);
void add_plan(CLI::App& app, Work& work);
void add_state(CLI::App& app, Work& work);
void add_step(CLI::App& app, Work& work);
void add_train(CLI::App& app, Work& work);
void add_verify(CLI::App& app, Work& work);

}  // namespace muonrt::tool
