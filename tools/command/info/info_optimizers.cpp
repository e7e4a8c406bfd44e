#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "command/command.hpp"
#include "opt_json/optimizers.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

struct Arguments {
  std::string name;
  bool json = false;
};

/// Returns the value of `key` in `about`, or an empty string if it is missing.
std::string about(const nlohmann::ordered_json& file, const char* key) {
  const auto found = file.at("about").find(key);
  return found == file.at("about").end() ? "" : found->get<std::string>();
}

int run(const Arguments& a) {
  if (!a.name.empty()) {
    fmt::print("{}", optimizer_json(a.name));
    return 0;
  }
  std::vector<Table::Column> columns = {{"name", "name", Table::Align::kLeft},
                                        {"system", "system", Table::Align::kLeft},
                                        {"source", "read in", Table::Align::kLeft}};
  if (a.json) {
    columns.push_back({"differs", ""});
    columns.push_back({"config", ""});
  }
  Table table(columns);
  for (const NamedOptimizer& one : named_optimizers()) {
    // An ordered_json keeps the keys in the order of the file.
    auto file = nlohmann::ordered_json::parse(one.opt_json);
    std::vector<Cell> row = {cell::word(std::string(one.name)), cell::word(about(file, "system")),
                             cell::word(about(file, "source"))};
    if (a.json) {
      row.push_back(cell::word(about(file, "differs")));
      file.erase("about");
      row.push_back({"", file.dump()});
    }
    table.add(std::move(row));
  }
  fmt::print("{}", a.json ? json_object({{"rows", table.json()}}) + "\n" : table.text());
  return 0;
}

}  // namespace

void add_info_optimizers(CLI::App& info, Work& work) {
  auto* command = info.add_subcommand("optimizers",
                                      "published optimizers as opt.json, for `train --optimizer`");
  auto a = std::make_shared<Arguments>();
  command->add_option("name", a->name, "print the opt.json of this one");
  command->add_flag("--json", a->json, "print JSON, with the content of each file");
  command->footer("Example: muonrt info optimizers normuon > opt.json");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
