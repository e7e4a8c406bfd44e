#include "command/plan/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muonrt::tool {

Table comparison_table(const std::string& first, const std::vector<ComparisonRow>& rows) {
  Table out({{first, first, Table::Align::kLeft},
             {"step_seconds", "step ms"},
             {"products_seconds", "products"},
             {"exchange_seconds", "exchange"},
             {"exposed_seconds", "exposed"},
             {"local_seconds", "local"},
             {"memory_bytes", "memory"},
             {"sent_bytes", "sent"}});
  double fastest = rows.empty() ? 0 : rows[0].step;
  for (const ComparisonRow& r : rows) fastest = std::min(fastest, r.step);
  const int digits = fastest < 0.01 ? 2 : fastest < 0.1 ? 1 : 0;
  const auto ms = [&](double seconds) {
    return Cell{fmt::format("{:.{}f}", seconds * 1e3, digits), fmt::format("{}", seconds)};
  };
  for (const ComparisonRow& r : rows)
    out.add({cell::word(r.name), ms(r.step), ms(r.products), ms(r.exchange), ms(r.exposed),
             ms(r.local), cell::bytes(r.memory_bytes), cell::bytes(r.sent_bytes)});
  return out;
}

std::string assumptions_of(const std::vector<ComparisonRow>& rows) {
  std::string out;
  for (const ComparisonRow& r : rows)
    if (!r.assumption.empty()) out += fmt::format("{:<18}  {}\n", r.name, r.assumption);
  return out;
}

std::string comparison_json(const std::string& first, const std::vector<ComparisonRow>& rows) {
  std::vector<std::pair<std::string, std::string>> assumptions;
  for (const ComparisonRow& r : rows) assumptions.emplace_back(r.name, json_text(r.assumption));
  std::vector<std::pair<std::string, std::string>> fields = {
      {"rows", comparison_table(first, rows).json()}};
  if (first == "strategy") fields.emplace_back("assumptions", json_object(assumptions));
  return json_object(fields);
}

}  // namespace muonrt::tool
