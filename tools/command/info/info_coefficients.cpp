#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "algo/coefficients.hpp"
#include "command/command.hpp"
#include "show/fit.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

constexpr double kLow = 1e-3;  // `lower_bound` of the generated lists

struct NamedList {
  std::string name;
  CoefficientList list;
};

NamedList generated(const std::string& name, int steps, double safety) {
  CoefficientSettings settings = default_settings(CoefficientFamily::kPolarExpress, steps);
  settings.safety = safety;
  return {name, make_coefficients(CoefficientFamily::kPolarExpress, settings)};
}

NamedList published(CoefficientFamily family) {
  return {name_of(family), make_coefficients(family, default_settings(family))};
}

/// Returns the default list of coefficients and its presets, followed by every other family in its
/// published form.
std::vector<NamedList> all_lists() {
  std::vector<NamedList> out = {published(CoefficientFamily::kPolarExpress),
                                generated("polar_express, accurate", 7, 1.02),
                                generated("polar_express, motif", 10, 1.01)};
  for (const CoefficientFamily family : coefficient_families()) {
    if (family != CoefficientFamily::kPolarExpress && family != CoefficientFamily::kCustom) {
      out.push_back(published(family));
    }
  }
  return out;
}

std::string json_steps(const CoefficientList& list) {
  std::string out;
  for (const Coefficients& c : list.steps) {
    out += fmt::format("{}[{},{},{}]", out.empty() ? "" : ",", c.a, c.b, c.c);
  }
  return "[" + out + "]";
}

Table properties(const std::vector<NamedList>& lists, bool json) {
  std::vector<Table::Column> columns = {
      {"list", "list", Table::Align::kLeft}, {"steps", "steps"},
      {"input_safety", "input safety"},      {"image_low", "image low"},
      {"image_high", "image high"},          {"image_of_1", "image of 1"},
      {"slope_at_zero", "slope at 0"},       {"headroom", "headroom"}};
  if (json) columns.push_back({"coefficients", ""});
  Table table(columns);
  for (const NamedList& named : lists) {
    const CoefficientList& list = named.list;
    const Range range = image_range(list, kLow, 1);
    std::vector<Cell> row = {cell::word(named.name),
                             cell::count(std::ssize(list.steps)),
                             cell::number(list.input_safety, 3),
                             cell::number(range.low, 6),
                             cell::number(range.high, 6),
                             cell::number(image(list, 1), 6),
                             cell::number(slope_at_zero(list), 1),
                             cell::number(headroom(list), 4)};
    if (json) row.push_back({"", json_steps(list)});
    table.add(std::move(row));
  }
  return table;
}

Table triples(const std::vector<NamedList>& lists) {
  Table table({{"list", "list", Table::Align::kLeft},
               {"step", "step"},
               {"a", "a"},
               {"b", "b"},
               {"c", "c"}});
  for (const NamedList& named : lists) {
    for (size_t i = 0; i < named.list.steps.size(); ++i) {
      const Coefficients& c = named.list.steps[i];
      table.add({cell::word(i == 0 ? named.name : ""), cell::count(static_cast<int64_t>(i) + 1),
                 cell::number(c.a, 10), cell::number(c.b, 10), cell::number(c.c, 10)});
    }
  }
  return table;
}

int run(bool json) {
  const std::vector<NamedList> lists = all_lists();
  if (json) {
    fmt::print("{}\n", json_object({{"low", fmt::format("{}", kLow)},
                                    {"rows", properties(lists, true).json()}}));
    return 0;
  }
  print_fitted(
      fmt::format("image: of singular values in [{}, 1] of a matrix divided by its norm; headroom: "
                  "the\n"
                  "largest singular value below which no image exceeds {}\n\n{}\n{}",
                  kLow, kHeadroomLimit, properties(lists, false).text(), triples(lists).text()));
  return 0;
}

}  // namespace

void add_info_coefficients(CLI::App& info, Work& work) {
  auto* command = info.add_subcommand(
      "coefficients", "Newton-Schulz coefficients and their effect on singular values");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print JSON");
  command->footer("Example: muonrt info coefficients --json");
  command->callback([=, &work] { work = [=] { return run(*json); }; });
}

}  // namespace muonrt::tool
