//! The examples of tidegate are in the folders and files beside this one; this library is empty.
