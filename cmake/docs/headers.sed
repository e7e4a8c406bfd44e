# Doxygen reads each header through this script. The script adds comments whose text always has the
# same form. Line numbers do not change.

# The inline namespace of the C++ wrapper matters only for symbol names.
s/^inline namespace v[0-9]* {$//
s/^}  \/\/ namespace v[0-9]*$//

# Leaves a declaration that has a comment unchanged. If it declares two fields, adds a comment to the
# second field that refers to the first.
/\*\/$/{
n
s/^\(  \(const \)\{0,1\}[a-z0-9_]* \)\(\**\)\([a-z0-9_]*\), \(\**[a-z0-9_]*\);$/\1\3\4; \/** See `\4`. *\/ \1\5;/
b
}

# Adds a comment to each enumeration, whose description is at its typedef, and to each _init macro.
s/^enum \(muonrt_[a-z0-9_]*\) {/\/** Values of \1_t. *\/ &/
s/^#define \(muonrt_[a-z0-9_]*_init[a-z0-9_]*\)(\([a-z_]*\)) .*/\/** Calls \1_sized() with the size of the struct. @param[out] \2 The struct to fill. *\/ &/
