#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "show/table.hpp"

namespace muonrt::tool {

/// Returns the median of at least one value.
double median_of(std::vector<double> list);

/// Concatenates lists of columns or cells.
template <class T>
std::vector<T> joined(std::initializer_list<std::vector<T>> lists) {
  std::vector<T> out;
  for (const auto& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

/// Returns the columns min_ms, median_ms and max_ms.
std::vector<Table::Column> range_columns();
/// Returns the cells in these columns.
std::vector<Cell> range_cells(const std::vector<double>& ms);

/// The output of a benchmark: either a title and a table, whose rows are printed as soon as they
/// are measured, or one JSON object at the end.
class BenchReport {
 public:
  struct Output {
    bool json = false;
    bool stream = false;  // with JSON: also print each row as {"row":{...}} when it is measured
    bool silent = false;  // for all ranks except one
  };
  /// @param columns  all columns except the last one, #wrong.
  BenchReport(Output output, std::vector<Table::Column> columns);

  std::string title, notes;  // of the table; the title is followed by " on " and the device
  std::string device;
  std::vector<std::pair<std::string, std::string>> fields;  // of the JSON object: name, JSON text

  /// @param cells  one for each column except #wrong.
  void add(std::vector<Cell> cells, int64_t wrong);
  /// @param why  the reason why the provider does not work on this device.
  void leave_out(const std::string& provider, const std::string& why);
  /// Prints the rest of the output. `failed` is the reason why the benchmark ended early; if it is
  /// not empty, prints it, too. Returns the exit status, which is 1 after a failure or a wrong
  /// result.
  int finish(const std::string& failed = "");
  size_t rows() const { return table_.rows(); }

 private:
  void print_json(const std::string& failed) const;

  Output output_;
  Table table_;
  bool whole_rows_ = true;  // whether the terminal is wide enough to print rows one by one
  std::vector<std::pair<std::string, std::string>> left_out_;
  int64_t wrong_ = 0;
};

}  // namespace muonrt::tool
