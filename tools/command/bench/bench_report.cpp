#include "command/bench/bench_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "show/fit.hpp"

namespace muonrt::tool {

double median_of(std::vector<double> list) {
  std::sort(list.begin(), list.end());
  const size_t half = list.size() / 2;
  return list.size() % 2 == 1 ? list[half] : (list[half - 1] + list[half]) / 2;
}

std::vector<Table::Column> range_columns() {
  return {{"min_ms", "min ms", Table::Align::kRight, 9},
          {"median_ms", "median ms", Table::Align::kRight, 9},
          {"max_ms", "max ms", Table::Align::kRight, 9}};
}

std::vector<Cell> range_cells(const std::vector<double>& ms) {
  const auto [least, most] = std::minmax_element(ms.begin(), ms.end());
  return {cell::number(*least, 4), cell::number(median_of(ms), 4), cell::number(*most, 4)};
}

BenchReport::BenchReport(Output output, std::vector<Table::Column> columns)
    : output_(output), table_(joined<Table::Column>({columns, {{"wrong", "#wrong"}}})) {}

void BenchReport::add(std::vector<Cell> cells, int64_t wrong) {
  cells.push_back(cell::count(wrong));
  table_.add(std::move(cells));
  wrong_ += wrong;
  const size_t row = table_.rows() - 1;
  if (output_.silent) return;
  if (!output_.json && row == 0) {
    whole_rows_ = table_.fits();
    print_fitted(fmt::format("{} on {}\n{}\n\n", title, device, notes));
    if (whole_rows_) fmt::print("{}", table_.head());
  }
  if (!output_.json && whole_rows_) fmt::print("{}", table_.row(row));
  if (output_.json && output_.stream) fmt::print("{{\"row\":{}}}\n", table_.json(row));
  std::fflush(stdout);
}

void BenchReport::leave_out(const std::string& provider, const std::string& why) {
  left_out_.emplace_back(provider, why);
}

int BenchReport::finish(const std::string& failed) {
  if (!output_.silent && output_.json) print_json(failed);
  if (!output_.silent && !output_.json) {
    if (!whole_rows_) fmt::print("{}", table_.text());
    for (const auto& [provider, why] : left_out_)
      print_fitted(fmt::format("left out: {}: {}\n", provider, why));
    if (!failed.empty()) print_fitted(fmt::format("failed: {}\n", failed));
  }
  std::fflush(stdout);
  return failed.empty() && wrong_ == 0 ? 0 : 1;
}

void BenchReport::print_json(const std::string& failed) const {
  auto all = fields;
  all.insert(all.begin(), {"device", json_text(device)});
  all.emplace_back("wrong", fmt::format("{}", wrong_));
  auto left_out = left_out_;
  for (auto& [provider, why] : left_out) why = json_text(why);
  if (!left_out.empty()) all.emplace_back("left_out", json_object(left_out));
  if (!failed.empty()) all.emplace_back("failed", json_text(failed));
  std::string rows;  // rows without the line breaks of Table::json()
  for (size_t i = 0; i < table_.rows(); ++i) rows += (i > 0 ? "," : "") + table_.json(i);
  all.emplace_back("rows", "[" + rows + "]");
  fmt::print("{}\n", json_object(all));
}

}  // namespace muonrt::tool
