#pragma once

#include <string>
#include <vector>

namespace muonrt {

/// Characters, not bytes, of UTF-8: names may be anything.
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
  /// One cell per column.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// Head and rows, one line each, no blanks at the line ends.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace muonrt
