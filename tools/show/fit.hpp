#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace muonrt::tool {

/// The columns to which text on stdout is fitted: COLUMNS, or those of the terminal. 0: any number.
size_t output_width();

/// A table as text.
struct Grid {
  std::vector<bool> right;                     // whether each column is right-aligned
  std::vector<size_t> width;                   // at least, if there is room; may be empty
  std::vector<std::vector<std::string>> rows;  // heads first
};

/// Returns the lines of a table with at most `width` columns (0: any number). Heads and the cells
/// of left-aligned columns continue on the next line. Columns that do not fit then follow below,
/// after the first one again.
std::string grid_text(const Grid& grid, size_t width);

/// Fits text to `width` columns (0: any number): sentences continue on the next line, and blocks
/// of lines with columns between two blanks are tables.
std::string fitted(const std::string& text, size_t width);

/// Fits the help of CLI11, in which descriptions begin at column 30.
std::string fitted_help(const std::string& text, size_t width);

/// Prints text on stdout, fitted to output_width().
void print_fitted(const std::string& text);

}  // namespace muonrt::tool
