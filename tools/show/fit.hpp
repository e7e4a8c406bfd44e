#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace muonrt::tool {

/// Returns the number of columns that text on stdout is fitted to: COLUMNS if it is set, otherwise
/// the width of the terminal. 0 means unlimited.
size_t output_width();

/// A table as text.
struct Grid {
  std::vector<bool> right;                     // whether each column is right-aligned
  std::vector<size_t> width;                   // minimum widths, if there is room; may be empty
  std::vector<std::vector<std::string>> rows;  // the first row has the headings
};

/// Returns the lines of a table with at most `width` columns; 0 means unlimited. Long headings and
/// long cells of left-aligned columns continue on the next line. Columns that still do not fit are
/// printed below, next to a copy of the first column.
std::string grid_text(const Grid& grid, size_t width);

/// Fits text to `width` columns; 0 means unlimited. Long sentences continue on the next line. If a
/// block of lines between two empty lines has columns, it is fitted as a table.
std::string fitted(const std::string& text, size_t width);

/// Fits the help text of CLI11, in which descriptions begin at column 30.
std::string fitted_help(const std::string& text, size_t width);

/// Prints text on stdout, fitted to output_width().
void print_fitted(const std::string& text);

}  // namespace muonrt::tool
