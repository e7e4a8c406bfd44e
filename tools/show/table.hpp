#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace muonrt::tool {

/// One value, as readable text and as JSON text.
struct Cell {
  std::string text, json;
};

namespace cell {
Cell word(const std::string& value);
Cell count(int64_t value);
/// Returns a cell with this many decimals in the text and all digits in JSON. NaN becomes "-" and
/// null.
Cell number(double value, int decimals);
/// Returns a cell that shows a number such as 1.2e-07 in the text.
Cell scientific(double value);
/// Returns a cell that shows a number such as 12,345,678 in the text.
Cell grouped(int64_t value);
/// Returns a cell that shows a size such as 1.50 MiB in the text.
Cell bytes(int64_t value);
/// Returns a cell with a list of numbers, separated by blanks in the text.
Cell list(const std::vector<int64_t>& values);
/// Returns a cell that shows "-" in the text and null in JSON.
Cell nothing();
}  // namespace cell

/// The table that every subcommand prints: aligned columns as text, or a JSON list of objects.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string key;   // name in JSON, with the unit, such as "step_ms" or "sent_bytes"
    std::string head;  // heading in the text
    Align align = Align::kRight;
    size_t width = 0;  // minimum width, for rows that are printed immediately
  };

  explicit Table(std::vector<Column> columns);

  /// Adds a row with one cell for each column. A column becomes as wide as its widest cell.
  void add(std::vector<Cell> row);
  size_t rows() const { return rows_.size(); }

  /// Returns the heading line, with the current column widths.
  std::string head() const;
  /// Returns the line for row `index`, with the current column widths.
  std::string row(size_t index) const;
  /// Returns whether rows with the current widths fit the terminal.
  bool fits() const;
  /// Returns the headings and all rows, and fits them to the terminal with grid_text().
  std::string text() const;
  /// Returns the same text for a terminal of `width` columns. 0 means an unlimited width.
  std::string text(size_t width) const;
  /// Returns the JSON list [{"key": value, ...}, ...].
  std::string json() const;
  /// Returns the JSON object of row `index` on one line.
  std::string json(size_t index) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

/// Returns the longest prefix of a UTF-8 text that fits into `most` columns.
std::string first_columns(const std::string& text, size_t most);

/// Returns the JSON object {"name":json,...} for pairs of a name and a JSON text.
std::string json_object(const std::vector<std::pair<std::string, std::string>>& fields);

/// Returns `text` as a JSON string, including the quotes.
std::string json_text(const std::string& text);

}  // namespace muonrt::tool
