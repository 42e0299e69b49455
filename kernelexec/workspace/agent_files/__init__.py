"""agent_files"""
