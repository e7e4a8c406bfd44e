#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "show/table.hpp"

namespace muonrt::tool {

/// Of at least one value.
double median_of(std::vector<double> list);

/// One list of columns or cells, made of several.
template <class T>
std::vector<T> joined(std::initializer_list<std::vector<T>> lists) {
  std::vector<T> out;
  for (const auto& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

/// min_ms, median_ms and max_ms.
std::vector<Table::Column> range_columns();
std::vector<Cell> range_cells(const std::vector<double>& ms);

/// The output of a benchmark: a title and a table whose rows are printed as they are measured, or
/// one JSON object at the end.
class BenchReport {
 public:
  struct Output {
    bool json = false;
    bool stream = false;  // with JSON: also each row when it is measured, as {"row":{...}}
    bool silent = false;  // for every rank but one
  };
  /// @param columns  all but the last one, #wrong.
  BenchReport(Output output, std::vector<Table::Column> columns);

  std::string title, notes;  // of the table; the title is followed by " on " and the device
  std::string device;
  std::vector<std::pair<std::string, std::string>> fields;  // of the JSON object: name, JSON text

  /// @param cells  one for each column but #wrong.
  void add(std::vector<Cell> cells, int64_t wrong);
  /// @param why  this device does not have the provider.
  void leave_out(const std::string& provider, const std::string& why);
  /// Prints the rest, and why the benchmark ended early unless `failed` is empty. Returns the exit
  /// status: 1 after a failure or a wrong result.
  int finish(const std::string& failed = "");
  size_t rows() const { return table_.rows(); }

 private:
  void print_json(const std::string& failed) const;

  Output output_;
  Table table_;
  bool whole_rows_ = true;  // the terminal is wide enough to print each row when it is measured
  std::vector<std::pair<std::string, std::string>> left_out_;
  int64_t wrong_ = 0;
};

}  // namespace muonrt::tool
