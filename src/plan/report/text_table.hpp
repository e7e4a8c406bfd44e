#pragma once

#include <string>
#include <vector>

namespace muonrt {

/// Returns the columns of a terminal that UTF-8 text fills: 2 for a wide character, 0 for a
/// combining one.
size_t columns_of(const std::string& text);

/// Aligned columns of text.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string head;
    Align align = Align::kRight;
  };

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// @param row  one cell for each column.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// Returns the head and the rows, one line each, without blanks at the ends.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace muonrt
