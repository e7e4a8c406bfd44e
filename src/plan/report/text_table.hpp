#pragma once

#include <string>
#include <vector>

namespace muonrt {

/// Returns the number of terminal columns that UTF-8 text fills. A wide character fills 2 columns,
/// and a combining character 0.
size_t columns_of(const std::string& text);

/// A table of text with aligned columns.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string head;
    Align align = Align::kRight;
  };

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// @param row  One cell for each column.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// Returns the header and the rows, one line each, without trailing blanks.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace muonrt
