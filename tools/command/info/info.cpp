#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command/command.hpp"
#include "command/gpu.hpp"
#include "muonrt/muonrt.hpp"
#include "show/fit.hpp"

namespace muonrt::tool {

namespace {

int run(bool json) {
  auto info = nlohmann::json::parse(build_info());
  if (info.at("cuda").get<bool>()) {
    info["cublas"] = cublas_text();
    info["nccl"] = nccl_text();
  }
  if (json) {
    fmt::print("{}\n", info.dump(2));
    return 0;
  }
  std::string out;
  for (const auto& [key, value] : info.items()) {
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (value.is_array())
      text = fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), ", "));
    out += fmt::format("{:<14}  {}\n", key, text);
  }
  print_fitted(out);
  return 0;
}

}  // namespace

void add_info(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("info", "versions and features of this build");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print JSON");
  command->footer("Example: muonrt info --json");
  command->require_subcommand(0, 1);
  add_info_defaults(*command, work);
  add_info_coefficients(*command, work);
  add_info_optimizers(*command, work);
  add_info_pages(*command, work);
  command->callback([=, &work] {
    if (command->get_subcommands().empty()) work = [=] { return run(*json); };
  });
}

}  // namespace muonrt::tool
